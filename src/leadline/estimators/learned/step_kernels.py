"""Estimators that tell whole steps as a ``KernelModel``: the graph neural network, and the black box."""

from collections.abc import Callable, Sequence

from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph
from leadline.core.hardware import Device
from leadline.estimators.learned.boards import require_gpu
from leadline.estimators.learned.gnn import GraphNetwork, Setting
from leadline.estimators.learned.law_kernels import StepSetting
from leadline.estimators.learned.op_table import OpTable
from leadline.estimators.learned.remembered import Remembered
from leadline.estimators.learned.step_table import features
from leadline.estimators.roofline import HOST_SPREAD, SPREAD, SpecsKernels
from leadline.estimators.tabular.ports import FittedEstimator


class _StepKernels:
    """A step is told by ``asked``, and a single op takes the share of it that it has under the maker's figures."""

    tier = Tier.LEARNED
    host_spread = HOST_SPREAD

    def __init__(
        self, asked: Callable[[Sequence[Op]], float], device: Device, spread: float, reasons: tuple[str, ...]
    ) -> None:
        self.reasons = reasons
        self._spread, self._specs = spread, SpecsKernels(device)
        self._step_s = Remembered(asked)

    def spread_of(self, graph: OpGraph) -> float:  # noqa: ARG002 - part of the protocol
        """Return what was found on families of models that the estimator had not seen."""
        return self._spread

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op."""
        alone_s = self._specs.ops_s(ops)
        whole_s = sum(seconds * op.count for seconds, op in zip(alone_s, ops, strict=True))
        factor = self._step_s(ops) / whole_s
        return [factor * seconds for seconds in alone_s]

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call, which such an estimator does not tell."""
        return self._specs.launch_s(op)

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph."""
        return self._step_s(graph.ops)


class NetworkKernels(_StepKernels):
    """The graph neural network in the ``setting`` that is nearest to the graph's.

    Raises:
        InvalidInput: the device is no GPU, or lacks a figure that the network reads.
    """

    name = "graph network"

    def __init__(
        self, network: GraphNetwork, device: Device, setting: StepSetting, *, spread: float = SPREAD,
        reasons: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        require_gpu(device, "the network")
        phase, layout = "train" if setting.training else "infer", "nhwc" if setting.channels_last else "nchw"
        near = Setting(phase, layout, float("".join(str(one) for one in setting.release)))
        super().__init__(lambda ops: float(network.price([ops], device, near)[0]), device, spread, reasons)


class BlackBoxKernels(_StepKernels):
    """Boosting on what a table says of a step, in the ``setting`` that is nearest to the graph's.

    Raises:
        InvalidInput: the device is no GPU, or lacks a figure that the table holds.
    """

    name = "black box"

    def __init__(
        self, fitted: FittedEstimator, device: Device, setting: StepSetting, *, spread: float = SPREAD,
        reasons: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        require_gpu(device, "the black box")

        def asked(ops: Sequence[Op]) -> float:
            rows, ideal_s = features(OpTable.of([ops]), [(0, device, setting)])
            return float(fitted.predict(rows).point[0] * ideal_s[0])

        super().__init__(asked, device, spread, reasons)
