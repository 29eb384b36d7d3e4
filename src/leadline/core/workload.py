"""Workloads: the model, its inputs, how it is trained, and for how long."""

from enum import StrEnum

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen


class Phase(StrEnum):
    """Use of the model (MLPerf's two divisions)."""

    TRAINING = "training"
    INFERENCE = "inference"


class Precision(StrEnum):
    """Number format of the arithmetic; ``amp-…`` keeps float32 weights and casts by autocast's lists."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"
    # bf16 with the layers' products in fewer bits:
    FP8 = "fp8"  # float8, scaled by tensor or in large blocks
    MXFP8 = "mxfp8"  # float8, a scale for each 32 numbers
    NVFP4 = "nvfp4"  # float4, a scale for each 16 numbers

    @property
    def is_narrow(self) -> bool:
        """True if products of layers are in 8 bits or fewer."""
        return self in (Precision.FP8, Precision.MXFP8, Precision.NVFP4)

    @property
    def compute(self) -> str:
        """Dtype of ops: ``float32``, ``tf32``, ``float16`` or ``bfloat16``."""
        words = {"fp32": "float32", "tf32": "tf32", "fp16": "float16"}
        return words.get(self.value.removeprefix("amp-"), "bfloat16")

    @property
    def weights(self) -> str:
        """Dtype of stored parameters."""
        return self.compute if self in (Precision.FP16, Precision.BF16) or self.is_narrow else "float32"

    @property
    def autocast(self) -> bool:
        """True if weights stay in float32 and are cast for each op."""
        return self.value.startswith("amp-")


class Optimizer(StrEnum):
    """Update rule, as named in ``torch.optim`` or bitsandbytes; it decides the state per parameter.

    The last three are bitsandbytes'. ``8bit`` stores each state number in one byte. ``paged`` stores the state in
    unified memory, which moves to the host when the device is short.
    """

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAMW = "adamw"
    ADAGRAD = "adagrad"
    RMSPROP = "rmsprop"
    LION = "lion"
    ADAMW_8BIT = "adamw8bit"
    PAGED_ADAMW = "paged-adamw"
    PAGED_ADAMW_8BIT = "paged-adamw8bit"

    @property
    def states(self) -> int:
        """Number of state tensors the size of the parameter."""
        return {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "lion": 1}.get(self.value, 2)

    @property
    def paged(self) -> bool:
        """True if the state may leave the device."""
        return self.value.startswith("paged-")

    @property
    def quantized(self) -> bool:
        """True if a state number takes one byte."""
        return self.value.endswith("8bit")

    @property
    def from_bitsandbytes(self) -> bool:
        """True if the rule is bitsandbytes': one kernel per tensor, and its own state type."""
        return self.paged or self.quantized

    def state_bytes(self, weight_bytes: int) -> float:
        """Return device bytes of state for a parameter of ``weight_bytes``, without quantization scales."""
        return 0.0 if self.paged else float(self.states * (1 if self.quantized else weight_bytes))


class Quantization(StrEnum):
    """Storage of weights in few bits, and the number format that they are multiplied in.

    The first two are bitsandbytes' (Dettmers et al. 2022, 2023), for inference and under adapters. ``4bit`` is NF4 with
    double quantization: a one-byte scale for 64 weights, and a float32 one for 256 of these. The others are those of
    serving engines, for inference alone.
    """

    INT8 = "8bit"
    NF4 = "4bit"
    AWQ = "awq"  # int4 weights, 128 with a scale and a zero point; products in 16 bits (Lin et al. 2024)
    GPTQ = "gptq"  # the same by another search (Frantar et al. 2023)
    W8A16 = "w8a16"  # int8 weights, a scale for each row; products in 16 bits
    W8A8 = "w8a8"  # int8 weights and activations (SmoothQuant, Xiao et al. 2023)
    FP8 = "fp8"  # float8 weights and activations, a scale for each tensor
    FP8_BLOCK = "fp8-block"  # the same with scales of 128 × 128 weights and of 128 activations (DeepSeek-V3)
    MXFP8 = "mxfp8"  # the same with a scale for each 32 numbers
    NVFP4 = "nvfp4"  # float4 weights and activations, a scale for each 16 numbers

    @property
    def is_for_adapters(self) -> bool:
        """True if adapters can be trained on weights in this format."""
        return self in (Quantization.INT8, Quantization.NF4)


class CacheDtype(StrEnum):
    """Number format of a KV cache in 8 bits, with one scale for each tensor (vLLM's ``--kv-cache-dtype``)."""

    FP8 = "fp8"
    INT8 = "int8"

    @property
    def stored(self) -> str:
        """Dtype of the cached numbers."""
        return {"fp8": "float8_e4m3fn"}.get(self.value, self.value)


AdapterSetting = bool | int | float | str


class Adapters(Frozen):
    """Weights trained beside frozen ones, by a method of peft (parameter-efficient fine-tuning)."""

    rank: int = 0  # 0 for the method's default
    embeddings: bool = False  # True to train the embedding and output layers in full (peft's `modules_to_save`)
    method: str = "lora"
    targets: tuple[str, ...] = ("all-linear",)
    """Adapted layers as in peft's ``target_modules``: names, or one expression after ``re:``; empty for the method's
    default."""
    settings: tuple[tuple[str, AdapterSetting], ...] = ()  # other fields of peft's configuration class


class AttentionImplementation(StrEnum):
    """Implementation of attention, as transformers names them (``attn_implementation``)."""

    EAGER = "eager"  # op by op: the scores of all pairs of tokens are in memory
    SDPA = "sdpa"  # PyTorch's scaled_dot_product_attention: the fused kernel that fits the precision
    FLASH = "flash"  # flash attention, in 16 bits


class LossKernel(StrEnum):
    """How the cross entropy of a language model is computed in training."""

    PLAIN = "plain"  # from the scores of all tokens, which are in memory
    FUSED = "fused"  # with the output layer, a few tokens at a time (Liger Kernel's fused linear cross entropy)


class Sharding(StrEnum):
    """Tensors that the replicas of a model shard among themselves (ZeRO's stages, FSDP's strategies)."""

    NONE = "none"  # DDP: each GPU holds everything, and gradients are reduced
    OPTIMIZER = "optimizer"  # ZeRO-1: the optimizer state
    GRADIENTS = "gradients"  # ZeRO-2, FSDP's SHARD_GRAD_OP: gradients as well
    FULL = "full"  # ZeRO-3, FSDP's FULL_SHARD: weights as well, gathered before each use

    @property
    def gathers(self) -> bool:
        """True if every microbatch needs communication."""
        return self in (Sharding.GRADIENTS, Sharding.FULL)


class Recompute(StrEnum):
    """Activations that the backward pass computes again instead of keeping them."""

    NONE = "none"
    SELECTIVE = "selective"  # attention scores, or with a fused attention half of the products (PyTorch's policy)
    FULL = "full"  # each layer, from its input


class Fusion(StrEnum):
    """How the ops between products run."""

    NONE = "none"  # one by one, as in transformers
    LIGER = "liger"  # Liger Kernel's norms, gated activations and rotary positions, which hold less for backward
    COMPILER = "compiler"  # fused by torch.compile
    LIBRARY = "library"  # hand-written kernels, as in Megatron Core, NeMo and Transformer Engine


class Launch(StrEnum):
    """How the host launches the kernels of a GPU."""

    EAGER = "eager"  # op by op
    GRAPHS = "graphs"  # captured once and replayed: CUDA graphs, torch.compile's reduce-overhead


class Overlap(StrEnum):
    """Communication that runs beside computing."""

    NONE = "none"
    DATA = "data"  # that of data parallelism, and of interleaved pipelines
    ALL = "all"  # that of tensor parallelism, too


class ContextMethod(StrEnum):
    """How context parallelism exchanges a sequence."""

    RING = "ring"  # keys and values travel round the GPUs (Liu et al. 2023)
    ULYSSES = "ulysses"  # an all-to-all from tokens to heads and back (Jacobs et al. 2023)


class Parallelism(Frozen):
    """Partitioning of one model over the GPUs of a job; the remaining factor is data parallelism.

    Neighbours are the tensor-parallel GPUs, then the context-parallel ones, then the replicas, then the pipeline
    stages (Megatron Core's order). Experts are spread over neighbours of a stage, and none is cut (its
    ``--expert-tensor-parallel-size 1``); without expert parallelism, tensor parallelism cuts them. ``None`` means that
    the user made no choice.
    """

    tensor: int = 1  # GPUs that share each layer (Megatron's tensor parallelism)
    pipeline: int = 1  # stages that share the layers
    sharding: Sharding = Sharding.NONE
    sequence: bool = True  # tensor-parallel GPUs divide the residual stream, too (Korthikanti et al. 2022)
    virtual: int = 1  # chunks of layers of each stage (interleaved schedule)
    context: int = 1  # GPUs that share each sequence
    context_method: ContextMethod = ContextMethod.RING
    expert: int = 1  # GPUs that share the experts of each layer
    shard_group: int = 0  # GPUs that share one copy of the weights (HSDP); 0 for all replicas
    fusion: Fusion | None = None
    overlap: Overlap | None = None

    @property
    def parts(self) -> int:
        """Number of GPUs that hold one replica of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def expert_parts(self) -> int:
        """Number of GPUs of a stage that hold one set of experts."""
        return self.expert if self.expert > 1 else self.tensor

    @property
    def divides_layers(self) -> bool:
        """True if a replica of the model is spread over several GPUs."""
        return self.parts > 1 or self.expert > 1

    def copies(self, gpus: int) -> int:
        """Return the number of model replicas on ``gpus``; ``InvalidInput`` if the GPUs are not divisible that way."""
        if gpus % self.parts:
            sizes = {"tensor": self.tensor, "pipeline": self.pipeline, "context": self.context}
            named = [name for name, size in sizes.items() if size > 1 or name != "context"]
            factors = " × ".join(str(sizes[name]) for name in named)
            raise InvalidInput(
                f"{gpus} GPUs cannot be divided into {' × '.join(named)} = {factors}: ask for a multiple of "
                f"{self.parts}"
            )
        copies = gpus // self.parts
        if (stage_gpus := gpus // self.pipeline) % self.expert:
            raise InvalidInput(
                f"experts cannot be spread over {self.expert} of {stage_gpus} GPUs: choose a divisor of the number of "
                "GPUs ÷ pipeline stages"
            )
        return copies


class ModelKind(StrEnum):
    """How the user specified the model."""

    FUNCTION = "function"
    HF_CONFIG = "hf-config"
    ONNX = "onnx"
    HLO = "hlo"
    JAX_FUNCTION = "jax-function"
    COMMAND = "command"


LIBRARIES = ("timm", "torchvision")
"""Packages whose models PyTorch functions build by name."""


class ModelSource(Frozen):
    """Location of the model."""

    kind: ModelKind
    reference: str
    """``file.py:function``, ``timm:NAME`` or ``torchvision:NAME``, the path of a ``config.json``, ``.onnx``, StableHLO
    or HLO file, or the command as typed."""
    argv: tuple[str, ...] = ()  # the command split into words; empty for the other kinds
    workdir: str | None = None  # its working directory, if not the current one

    @property
    def library(self) -> str | None:
        """The package that builds the model by its name, if one does."""
        package, _, name = self.reference.partition(":")
        return package if self.kind is ModelKind.FUNCTION and name and package in LIBRARIES else None


class InputShape(Frozen):
    """One model input, batch dimension included: ``64x3x224x224`` of ``float32``."""

    shape: tuple[int, ...]
    dtype: str = "float32"


class Dataset(Frozen):
    """Data of one epoch: number of samples, their stored size, and how they are loaded."""

    samples: int | None = None
    bytes_per_sample: int | None = None
    workers: int = 0  # processes of the loader
    load_s: float | None = None  # seconds in which one process makes a batch, as the user measured it
    held_in_memory: bool = False


class Lengths(Frozen):
    """Token counts of the samples of a data set, as equally weighted ``quantiles`` in order."""

    quantiles: tuple[int, ...]
    longest: int  # length of the longest sample, which occurs in one batch of each epoch

    def padded_mean(self, batch: int) -> float:
        """Return the mean over batches of the longest of ``batch`` samples, the mean of an order statistic."""
        count = len(self.quantiles)
        shares = [(rank / count) ** batch for rank in range(count + 1)]
        return sum(length * (up - low) for length, low, up in zip(self.quantiles, shares[:-1], shares[1:], strict=True))

    def truncated(self, tokens: int) -> "Lengths":
        """Return the lengths with samples truncated to ``tokens``."""
        return Lengths(tuple(min(length, tokens) for length in self.quantiles), min(self.longest, tokens))


class NetworkRate(Frozen):
    """The bandwidth of each node, or of each GPU, to the network in one direction."""

    bytes_per_s: float
    per_gpu: bool = False


TRACE_LIMIT_S = 180.0


class Workload(Frozen):
    """A training or inference job, independent of where it runs.

    ``None`` means that the user made no choice and the front-end decides.
    """

    model: ModelSource
    phase: Phase = Phase.TRAINING
    batch: int | None = None  # samples per GPU and accumulation micro-step
    inputs: tuple[InputShape, ...] = ()
    sequence: int | None = None
    """Prompt tokens in generation; tokens of a mean batch if batches are padded and ``lengths`` is absent."""
    precision: Precision | None = None
    optimizer: Optimizer | None = None
    accumulation: int = 1
    recompute: Recompute = Recompute.NONE
    automatic_layout: bool = False  # True to choose the fastest layout that fits
    global_batch: int | None = None  # samples of a step over all GPUs, for an automatic layout
    dataset: Dataset = Dataset()
    epochs: float | None = None
    steps: int | None = None
    gpus: int = 1
    needs_gpus: bool = False  # True if the user or a launcher asked for GPUs: a place without any is no candidate
    name: str = ""
    trace_limit_s: float = TRACE_LIMIT_S  # of a script, to its second training step
    compiled: bool = False  # use the graph that XLA makes for each device
    defaulted: tuple[str, ...] = ()  # fields that a default filled, for the output
    parallelism: Parallelism = Parallelism()
    network: NetworkRate | None = None  # overrides the network of the place
    power_limit_w: float | None = None  # of each GPU; overrides that of the place
    generated: int | None = None  # tokens after each prompt of a language model
    adapters: Adapters | None = None
    """The only trained weights; the others are frozen and may be quantized (``quantization``)."""
    quantization: Quantization | None = None
    cache_dtype: CacheDtype | None = None  # of the KV cache; None for that of the keys and values
    longest: int | None = None  # tokens of the longest batch, if batches are padded to their longest sample
    lengths: Lengths | None = None
    attention: AttentionImplementation | None = None  # of a config.json; None for the one that its file names
    loss: LossKernel = LossKernel.PLAIN
    launch: Launch = Launch.EAGER
    launch_s: float | None = None  # seconds of the host for each op; None for those of the device's record
    paged: bool = False  # True if the KV cache consists of small blocks instead of one tensor per layer

    @property
    def checkpointing(self) -> bool:
        """True if each layer is computed again from its input."""
        return self.recompute is Recompute.FULL
