"""Kernels that torch.compile fuses, and kernels that CUDA graphs replay, as wrappers of a ``KernelModel``."""

import math
from collections.abc import Sequence

from leadline.core.estimate import Tier
from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpGraph
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import KernelModel
from leadline.core.workload import Fusion, Launch, Workload
from leadline.estimators.parallelism.training_step import COMPILED_KERNELS
from leadline.estimators.step_time.roofline import MATRIX_KINDS

# Share of the time of ops between products that torch.compile leaves, fitted to 1,072 pairs of eager and compiled
# inference of timm's vision models (AMP, RTX 4090, PyTorch 2.9): 0.53 to 0.56 if families are left out. Nine in ten
# ratios of these were then within exp(±0.34). Language models are an assumption.
COMPILED_TIME, COMPILED_SPREAD = 0.54, 0.21
# Log deviation that graphs add, an assumption: three steps of one H200 took 1.08 to 1.13 times their kernels.
GRAPHS_SPREAD = 0.1
OVERLAP = 4.0


class CompiledKernels(Frozen):
    """A ``KernelModel`` of a step whose ops between products are fused."""

    kernels: KernelModel
    tier: Tier
    reasons: tuple[str, ...]
    host_spread: float

    @property
    def name(self) -> str:
        """Name of the method, marked as compiled."""
        return f"{self.kernels.name}, compiled"

    def spread_of(self, graph: OpGraph) -> float:
        """Return the spread of the kernels, wider by that of fusion."""
        return math.hypot(self.kernels.spread_of(graph), COMPILED_SPREAD)

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op: those of a fused kernel are shared by its ops."""
        return [
            seconds * (1.0 if op.kind in MATRIX_KINDS else COMPILED_TIME)
            for op, seconds in zip(ops, self.kernels.ops_s(ops), strict=True)
        ]

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call: fewer kernels are launched."""
        return COMPILED_KERNELS * self.kernels.launch_s(op)

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph, which fall as those of the device and of the host do."""
        before_s, after_s = (_slower_s(model, graph) for model in (self.kernels, self))
        return self.kernels.step_s(graph) * after_s / before_s if before_s else 0.0


class ReplayedKernels(Frozen):
    """A ``KernelModel`` of captured and replayed kernels: only the device takes time."""

    kernels: KernelModel
    tier: Tier
    name: str = "replayed kernels"
    reasons: tuple[str, ...] = ()
    spread: float = 0.0
    host_spread: float = 0.0  # the host launches nothing

    def spread_of(self, graph: OpGraph) -> float:
        """Return the spread of the kernels, wider by ``spread``."""
        return math.hypot(self.kernels.spread_of(graph), self.spread)

    def ops_s(self, ops: Sequence[Op]) -> Sequence[float]:
        """Return the seconds of one call of each op on the device."""
        return self.kernels.ops_s(ops)

    def launch_s(self, op: Op) -> float:  # noqa: ARG002 - part of the protocol
        """Return no time: nothing is launched op by op."""
        return 0.0

    def step_s(self, graph: OpGraph) -> float:
        """Return the sum of the kernels, one after the other."""
        return sum(seconds * op.count for seconds, op in zip(self.ops_s(graph.ops), graph.ops, strict=True))


def launched_as(model: KernelModel, workload: Workload, device: Device) -> KernelModel:
    """Return the kernel model of a workload that compiles its ops or replays them."""
    if device.kind is DeviceKind.CPU:
        return model
    if workload.parallelism.fusion is Fusion.COMPILER:
        why = (
            f"torch.compile: ops between products take {COMPILED_TIME:.2f} of their time, as vision models on an "
            "RTX 4090 did (assumed elsewhere); wider interval"
        )
        model = CompiledKernels(model, model.tier, (*model.reasons, why), model.host_spread)
    if workload.launch is Launch.GRAPHS:
        why = "CUDA graphs: no launch of single kernels (assumed, measured on three steps only); wider interval"
        model = ReplayedKernels(
            model, model.tier, f"{model.name}, CUDA graphs", (*model.reasons, why), GRAPHS_SPREAD
        )  # fmt: skip
    return model


def _slower_s(model: KernelModel, graph: OpGraph) -> float:
    """Return the seconds of the slower of device and host, with a smooth corner."""
    device_s = sum(seconds * op.count for seconds, op in zip(model.ops_s(graph.ops), graph.ops, strict=True))
    host_s = sum(model.launch_s(op) * op.count for op in graph.ops)
    return float((device_s**OVERLAP + host_s**OVERLAP) ** (1 / OVERLAP))
