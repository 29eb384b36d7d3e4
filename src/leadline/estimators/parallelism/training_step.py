"""One training step of a transformer in any layout, and n such steps as columns."""

from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np
from msgspec.structs import replace

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device
from leadline.core.workload import ContextMethod, Fusion, Launch, Overlap, Parallelism, Recompute, Sharding
from leadline.estimators.parallelism.decoder_work import Cut, DecoderWork
from leadline.estimators.parallelism.product_times import ProductCurves, product_seconds, sustained_peak
from leadline.estimators.ports import Array
from leadline.estimators.step_time.power_limit import power_spread

# Dtypes of products in 8 bits or fewer, with the peak that bounds them.
NARROW = {"float8": "float8", "mxfloat8": "float8", "float4": "float4"}


class AttentionKernel(StrEnum):
    """The attention that runs."""

    WRITTEN = "written"  # scores go to memory
    FLASH1 = "flash1"  # FlashAttention 1
    FLASH2 = "flash2"  # FlashAttention 2, which PyTorch uses
    FLASH3 = "flash3"  # kernels made for Hopper and later: FlashAttention 3, cuDNN


class TrainingStep(Frozen):
    """One optimizer step.

    Attributes:
        work: Work of a microbatch before any division.
        island: GPUs that the devices' own link joins.
        gpu_network_bytes_per_s: Network of each GPU, in one direction.
        dtype: Dtype of the layers' products.
        autocast: True if weights and gradients are in float32.
        fusion: Fusion of ops, which ``plan`` may leave open.
        overlap: Overlapped communication, which ``plan`` may leave open.
        launch: How the host launches kernels.
    """

    work: DecoderWork
    device: Device
    gpus: int
    plan: Parallelism = Parallelism()
    island: int = 8
    gpu_network_bytes_per_s: float = 50e9
    microbatches: int = 1
    recompute: Recompute = Recompute.NONE
    attention: AttentionKernel = AttentionKernel.FLASH2
    dtype: str = "bfloat16"
    autocast: bool = False
    fusion: Fusion = Fusion.NONE
    overlap: Overlap = Overlap.DATA
    launch: Launch = Launch.EAGER

    @property
    def half_dtype(self) -> str:
        """Dtype of the products that are not in 8 bits."""
        return "float16" if self.dtype == "float16" else "bfloat16"

    @property
    def reduced_bytes(self) -> int:
        """Bytes of a gradient on the network: libraries accumulate and reduce them in float32."""
        return 4 if self.autocast or self.fusion is Fusion.LIBRARY or self.dtype in NARROW else 2

    def with_plan(self, plan: Parallelism) -> "TrainingStep":
        """Return the step in another layout, with its fusion, overlap and attention.

        By default ops are fused where layers are divided, as in the frameworks that can do so, and communication of
        data parallelism overlaps.
        """
        fusion = plan.fusion or (Fusion.LIBRARY if plan.divides_layers else Fusion.NONE)
        return replace(self, plan=plan, fusion=fusion, overlap=plan.overlap or Overlap.DATA).with_usual_attention()

    def with_usual_attention(self) -> "TrainingStep":
        """Return the step with the attention that its graph and framework use."""
        modern = self.fusion is Fusion.LIBRARY and self.device.architecture != "Ampere"
        fused = AttentionKernel.FLASH3 if modern else AttentionKernel.FLASH2
        return replace(self, attention=AttentionKernel.WRITTEN if self.work.scores else fused)

    @property
    def replicas(self) -> int:
        """Number of replicas of the model; ``InvalidInput`` if the GPUs are not divisible by the layout."""
        plan = self.plan
        parts = plan.tensor * plan.pipeline * plan.context
        if self.gpus % parts or self.gpus // plan.pipeline % plan.expert:
            return plan.copies(self.gpus)  # raises
        return self.gpus // parts

    @property
    def shards(self) -> int:
        """Number of GPUs that share what is sharded."""
        if self.plan.sharding is Sharding.NONE:
            return 1
        return self.plan.shard_group or self.replicas * self.plan.context


# FLOP/s of causal attention on long sequences with heads of 128, forward and backward together, as shares of the dense
# 16-bit peak. FlashAttention 1: 109 TFLOP/s on an A100 (Dao 2023, figure 5), on an H100 1.6 times that, its
# multiprocessors times clock. FlashAttention 2: 190 and 330 TFLOP/s (the same). FlashAttention 3: 430 TFLOP/s (Shah et
# al. 2024, figures 5 and 6, forward and backward weighted by their FLOPs). Ada and Blackwell: the forward kernels that
# aiconfigurator timed (commit 095f58a51) reach 0.55 of the peak on both, 0.62 on an A100 and 0.64 on an H100. Backward
# is taken to cost as much over forward as on Ampere, whose kernels Ada has, and on Hopper.
ATTENTION_SHARES = {
    AttentionKernel.FLASH1: {"Ampere": 0.35, "Hopper": 0.177},
    AttentionKernel.FLASH2: {"Ampere": 0.61, "Hopper": 0.33, "Ada": 0.54},
    AttentionKernel.FLASH3: {"Ampere": 0.61, "Hopper": 0.43, "Ada": 0.54, "Blackwell": 0.37},
}
OTHER_ATTENTION_SHARE = 0.35
# Rates on heads of 64 and 256 over that on heads of 128, of the newest kernels (the same timings).
HEAD_RATES = {"Ada": (0.85, 0.78), "Hopper": (0.77, 1.11), "Blackwell": (0.62, 1.15)}
# Kernels of a layer's half (norm, products, residual) that libraries launch, forward and backward. An assumption:
# Megatron's layers show about 30 in profiles.
LIBRARY_KERNELS = 30.0
COMPILED_KERNELS = 0.45  # share of the kernels that torch.compile leaves of a Llama's layers


class StepTable:
    """The sizes of n steps as columns (n,), with the seconds of their products by measured kernels.

    Raises:
        InvalidInput: a device lacks its bandwidth or a peak, or the GPUs are not divisible by the layout.
    """

    def __init__(self, steps: Sequence[TrainingStep], curves: ProductCurves) -> None:
        def column(value: Callable[[TrainingStep], float]) -> Array:
            return np.array([value(step) for step in steps], np.float64)

        self.rows = len(steps)
        self.tensor, self.pipeline = column(lambda s: s.plan.tensor), column(lambda s: s.plan.pipeline)
        self.context, self.expert = column(lambda s: s.plan.context), column(lambda s: s.plan.expert)
        self.expert_parts = column(lambda s: s.plan.expert_parts)
        self.virtual, self.microbatches = column(lambda s: s.plan.virtual), column(lambda s: s.microbatches)
        self.replicas, self.shards = column(lambda s: s.replicas), column(lambda s: s.shards)
        self.stream_parts = column(lambda s: s.plan.tensor if s.plan.sequence else 1)
        self.ulysses = column(lambda s: s.plan.context_method is ContextMethod.ULYSSES) > 0
        self.gathers = column(lambda s: s.plan.sharding is Sharding.FULL)
        self.reduces_each = column(lambda s: s.plan.sharding in (Sharding.GRADIENTS, Sharding.FULL))
        self.reduced_bytes = column(lambda s: s.reduced_bytes)
        self.island, self.network = column(lambda s: s.island), column(lambda s: s.gpu_network_bytes_per_s)
        self.link, self.memory = column(lambda s: link_bytes_per_s(s.device)), column(lambda s: _bandwidth(s.device))
        self.narrow = column(lambda s: s.dtype in NARROW) > 0
        self.scaled_by_block = column(lambda s: s.dtype in ("mxfloat8", "float4")) > 0
        self.full = column(lambda s: s.recompute is Recompute.FULL)
        self.selective = column(lambda s: s.recompute is Recompute.SELECTIVE)
        self.fused = column(lambda s: s.fusion in (Fusion.COMPILER, Fusion.LIBRARY)) > 0
        self.library = column(lambda s: s.fusion is Fusion.LIBRARY) > 0
        self.kernels = column(_kernels)
        self.update_kernels = column(_update_kernels)
        self.captured = column(lambda s: s.launch is Launch.GRAPHS) > 0
        self.kernel = {
            kernel.value: np.array([step.attention is kernel for step in steps]) for kernel in AttentionKernel
        }
        self.written = self.kernel[AttentionKernel.WRITTEN]
        self.attention_rate = column(_attention_rate)
        self.power_spread = column(lambda s: power_spread(s.device))  # of the logarithm of the rates
        self.overlaps = column(lambda s: s.overlap is not Overlap.NONE) > 0
        self.overlaps_all = column(lambda s: s.overlap is Overlap.ALL) > 0
        self._add_work([step.work for step in steps])
        self._add_products(steps, curves)

    def _add_work(self, works: Sequence[DecoderWork]) -> None:
        def column(value: Callable[[DecoderWork], float]) -> Array:
            return np.array([value(work) for work in works], np.float64)

        self.width, self.tokens = column(lambda w: w.width), column(lambda w: w.tokens)
        self.sequence, self.reductions = column(lambda w: w.sequence), column(lambda w: w.reductions)
        self.attention_flops, self.scores = column(lambda w: w.attention_flops), column(lambda w: w.scores)
        self.attention_blocks, self.key_width = column(lambda w: w.attention_blocks), column(lambda w: w.key_width)
        self.stream_bytes, self.inner_bytes = column(lambda w: w.stream_bytes), column(lambda w: w.inner_bytes)
        self.head_bytes, self.parameters = column(lambda w: w.head_bytes), column(lambda w: w.parameters)
        self.expert_weights, self.routed = column(lambda w: w.expert_weights), column(lambda w: w.routed_tokens)
        self.layer_weights, self.expert_layers = column(lambda w: w.layer_weights), column(lambda w: w.expert_layers)

    def _add_products(self, steps: Sequence[TrainingStep], curves: ProductCurves) -> None:
        """Add the seconds of a microbatch's products, each by its shape after all cuts.

        ``*_s`` is forward and ``*_back_s`` backward, the products for both gradients. ``layer`` are products that all
        tokens use, ``routed`` those of experts, and ``head`` the vocabulary's scores. ``outputs`` are the elements that
        products write which are no sums of the residual stream, and ``cast`` the elements of operands.
        """
        shape = len(steps), max(len(step.work.products) for step in steps)
        m, n, k, experts = np.ones((4, *shape))
        count, cuts = np.zeros(shape), np.full(shape, "", "<U6")
        for row, step in enumerate(steps):
            for place, product in enumerate(step.work.products):
                at = row, place
                m[at], n[at], k[at], count[at] = product.m, product.n, product.k, product.count
                experts[at], cuts[at] = product.experts, product.cut.value
        head, inner, routed = cuts == Cut.HEAD.value, cuts == Cut.INNER.value, experts > 0
        self.outputs = (m * n * count * np.maximum(experts, 1)).sum(1, where=~head & ~inner)
        self.most_experts = experts.max(axis=1)
        # Expert parallelism cuts no expert, and takes the tokens of all GPUs of a stage.
        expert, spread = self.expert[:, None], routed & (self.expert[:, None] > 1)
        m = m / self.context[:, None] * np.where(spread, expert / self.tensor[:, None], 1.0)
        m, tensor = np.maximum(m, 1.0), np.where(spread, 1.0, self.tensor[:, None])
        n, k = np.where(inner, n, n / tensor), np.where(inner, k / tensor, k)
        groups = np.where(routed, experts / expert, 1.0)
        self.cast = (m * (n + k) * count * groups).sum(1, where=~head)
        devices, halves, dtypes = zip(
            *((step.device, step.half_dtype, NARROW.get(step.dtype, step.dtype)) for step in steps), strict=True
        )
        half = curves.rates(devices, halves)
        full = half if dtypes == halves else curves.rates(devices, dtypes)

        def times(*sides: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            seconds, short = (
                sum(product_seconds(rates, *side, groups, busy=True) for side in sides) for rates in (half, full)
            )
            layer = (short * count).sum(1, where=~head & ~routed)
            return layer, (short * count).sum(1, where=routed), (seconds * count).sum(1, where=head)

        self.layer_s, self.routed_s, self.head_s = times((m, n, k))
        self.layer_back_s, self.routed_back_s, self.head_back_s = times((m, k, n), (k, n, m))


def link_bytes_per_s(device: Device) -> float:
    """Return the rate of the link between devices of a node in one direction, of its own or by its slot."""
    if device.link_bytes_per_s:
        return device.link_bytes_per_s / 2
    return device.host_bytes_per_s or 25e9


def _bandwidth(device: Device) -> float:
    if not device.memory_bytes_per_s:
        raise InvalidInput(f"{device.name} has no memory bandwidth in the catalog: add it to a device file of your own")
    return device.memory_bytes_per_s


def _kernels(step: TrainingStep) -> float:
    if step.fusion is Fusion.LIBRARY:
        return LIBRARY_KERNELS * (step.work.reductions + step.work.expert_layers)
    return step.work.kernels * (COMPILED_KERNELS if step.fusion is Fusion.COMPILER else 1.0)


def _update_kernels(step: TrainingStep) -> float:
    # Libraries update all weights in few kernels.
    return 0.0 if step.fusion is Fusion.LIBRARY else step.work.update_kernels


def _attention_rate(step: TrainingStep) -> float:
    peak = sustained_peak(step.device, step.half_dtype)
    if step.attention is AttentionKernel.WRITTEN:
        return peak
    architecture = step.device.architecture or ""
    narrow, wide = (1.0, 1.0) if step.attention is AttentionKernel.FLASH1 else HEAD_RATES.get(architecture, (1.0, 1.0))
    share = ATTENTION_SHARES[step.attention].get(architecture, OTHER_ATTENTION_SHARE)
    return peak * share * float(np.interp(step.work.head_width, (64, 128, 256), (narrow, 1.0, wide)))
