"""What the user wants to run: the model, how it is fed, how it is trained, and for how long."""

from dataclasses import dataclass
from enum import StrEnum

from leadline.core.errors import InvalidInput


class Phase(StrEnum):
    """What the job does with the model (MLPerf's two divisions)."""

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

    @property
    def compute(self) -> str:
        """The dtype in which matrix products run: ``float32``, ``tf32``, ``float16`` or ``bfloat16``."""
        return {"fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16"}[
            self.value.removeprefix("amp-")
        ]

    @property
    def weights(self) -> str:
        """The dtype in which parameters are stored."""
        return self.compute if self in (Precision.FP16, Precision.BF16) else "float32"

    @property
    def autocast(self) -> bool:
        """Whether weights stay in float32 and are cast op by op."""
        return self.value.startswith("amp-")


class Optimizer(StrEnum):
    """Update rule, as named in ``torch.optim`` or bitsandbytes; what matters before the run is its state per parameter.

    The last three are bitsandbytes': ``8bit`` keeps each number of the state in one byte, ``paged`` keeps the state in
    unified memory, out of which it moves to the host where the device is short.
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
        """Whether the state may leave the device."""
        return self.value.startswith("paged-")

    @property
    def quantized(self) -> bool:
        """Whether a number of the state takes one byte."""
        return self.value.endswith("8bit")

    @property
    def from_bitsandbytes(self) -> bool:
        """Whether the rule is bitsandbytes': one kernel for each tensor, and a state of its own type."""
        return self.paged or self.quantized

    def state_bytes(self, weight_bytes: int) -> float:
        """Return the bytes of state on the device for a parameter of ``weight_bytes``, what it takes to scale aside."""
        return 0.0 if self.paged else float(self.states * (1 if self.quantized else weight_bytes))


class Quantization(StrEnum):
    """How the frozen weights beside adapters are stored, as bitsandbytes does (Dettmers et al. 2022, 2023).

    ``4bit`` is NF4 with double quantization: a scale of one byte for 64 weights, and a float32 one for 256 of these.
    """

    INT8 = "8bit"
    NF4 = "4bit"


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank adapters beside frozen weights (LoRA, Hu et al. 2021), on all linear layers but the output layer.

    With ``embeddings`` the embedding and the output layer are trained as well, whole (peft's ``modules_to_save``).
    """

    rank: int
    embeddings: bool = False


class Sharding(StrEnum):
    """What the copies of a model share out among themselves (ZeRO's stages, FSDP's strategies)."""

    NONE = "none"
    """Each GPU holds everything and gradients are reduced (DDP)."""
    OPTIMIZER = "optimizer"
    """ZeRO-1: the optimizer's state."""
    GRADIENTS = "gradients"
    """ZeRO-2, FSDP's SHARD_GRAD_OP: gradients as well."""
    FULL = "full"
    """ZeRO-3, FSDP's FULL_SHARD: weights as well, gathered before each use."""

    @property
    def gathers(self) -> bool:
        """Whether something is exchanged for every microbatch."""
        return self in (Sharding.GRADIENTS, Sharding.FULL)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How one model is divided over the GPUs of a job; what is left of them holds copies fed with other data.

    ``tensor`` GPUs share each layer (Megatron's tensor parallelism) and ``pipeline`` stages share the layers.
    """

    tensor: int = 1
    pipeline: int = 1
    sharding: Sharding = Sharding.NONE

    def copies(self, gpus: int) -> int:
        """Return how many copies of the model ``gpus`` hold.

        Raises:
            InvalidInput: the GPUs cannot be divided so.
        """
        whole = self.tensor * self.pipeline
        if gpus % whole:
            raise InvalidInput(
                f"{gpus} GPUs cannot be divided into tensor × pipeline = {self.tensor} × {self.pipeline}: "
                f"ask for a multiple of {whole}"
            )
        return gpus // whole


class ModelKind(StrEnum):
    """How the user named the model."""

    FUNCTION = "function"
    HF_CONFIG = "hf-config"
    ONNX = "onnx"
    HLO = "hlo"
    JAX_FUNCTION = "jax-function"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the model comes from.

    ``reference`` is ``file.py:function``, the path of a ``config.json``, ``.onnx``, StableHLO or HLO file, or the
    command as typed; ``argv`` is the command split into words, empty for the other kinds; ``workdir`` is where it runs,
    if not here.
    """

    kind: ModelKind
    reference: str
    argv: tuple[str, ...] = ()
    workdir: str | None = None


@dataclass(frozen=True, slots=True)
class InputShape:
    """One input of the model, batch dimension included: ``64x3x224x224`` of ``float32``."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Dataset:
    """The data one epoch reads: number of samples, their stored size, and the loader's worker processes."""

    samples: int | None = None
    bytes_per_sample: int | None = None
    workers: int = 0
    held_in_memory: bool = False


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens the samples of a data set have: ``quantiles`` in order, each for as many samples as any other.

    ``longest`` is the longest sample's, which is in one batch of each epoch.
    """

    quantiles: tuple[int, ...]
    longest: int

    def padded_mean(self, batch: int) -> float:
        """Return the mean over batches of what the longest of ``batch`` samples has: the mean of an order statistic."""
        count = len(self.quantiles)
        shares = [(rank / count) ** batch for rank in range(count + 1)]
        return sum(length * (up - low) for length, low, up in zip(self.quantiles, shares[:-1], shares[1:], strict=True))

    def truncated(self, tokens: int) -> "Lengths":
        """Return the lengths of the samples cut off at ``tokens``."""
        return Lengths(tuple(min(one, tokens) for one in self.quantiles), min(self.longest, tokens))


@dataclass(frozen=True, slots=True)
class Workload:
    """One training or inference job, before anything is known about where it will run.

    ``batch`` is per GPU and per accumulation micro-step. ``None`` means that the user did not say and the front-end
    decides; ``compiled`` asks for the graph that the framework's compiler makes for each device; ``defaulted`` names
    the fields that a default filled, so that the output can say so. ``generated`` tokens follow each prompt of
    ``sequence`` tokens where a language model answers. With ``adapters`` they alone are trained, beside weights that
    are frozen and may be stored in fewer bits (``quantization``). Where batches are padded to their longest sample,
    ``longest`` is the tokens of the longest batch, and ``sequence`` those of a mean one unless ``lengths`` tell both.
    A ``paged`` KV cache lies in blocks of few tokens, where others are one tensor a layer.
    """

    model: ModelSource
    phase: Phase = Phase.TRAINING
    batch: int | None = None
    inputs: tuple[InputShape, ...] = ()
    sequence: int | None = None
    precision: Precision | None = None
    optimizer: Optimizer | None = None
    accumulation: int = 1
    checkpointing: bool = False
    dataset: Dataset = Dataset()
    epochs: float | None = None
    steps: int | None = None
    gpus: int = 1
    name: str = ""
    compiled: bool = False
    defaulted: tuple[str, ...] = ()
    parallelism: Parallelism = Parallelism()
    generated: int | None = None
    adapters: Adapters | None = None
    quantization: Quantization | None = None
    longest: int | None = None
    lengths: Lengths | None = None
    paged: bool = False
