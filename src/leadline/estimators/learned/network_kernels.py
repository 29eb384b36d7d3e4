"""The graph neural network as a ``KernelModel``: it tells whole steps, whose ops are shared out by the roofline."""

from collections.abc import Sequence

from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph
from leadline.core.hardware import Device
from leadline.estimators.learned.boards import require_gpu
from leadline.estimators.learned.gnn import GraphNetwork, Setting
from leadline.estimators.learned.law_kernels import StepSetting
from leadline.estimators.learned.remembered import Remembered
from leadline.estimators.roofline import HOST_SPREAD, SPREAD, SpecsKernels


class NetworkKernels:
    """A ``KernelModel`` by the graph neural network, in the ``setting`` that is nearest to the graph's.

    The network tells the step; a single op takes the share of it that it has under the maker's figures.

    Raises:
        InvalidInput: the device is no GPU, or lacks a figure that the network reads.
    """

    name = "graph network"
    tier = Tier.LEARNED
    host_spread = HOST_SPREAD

    def __init__(
        self, network: GraphNetwork, device: Device, setting: StepSetting, *, spread: float = SPREAD,
        reasons: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        require_gpu(device, "the network")
        self.reasons = reasons
        self._network, self._device, self._spread = network, device, spread
        self._specs = SpecsKernels(device)
        phase, layout = "train" if setting.training else "infer", "nhwc" if setting.channels_last else "nchw"
        self._setting = Setting(phase, layout, float("".join(str(one) for one in setting.release)))
        self._step_s = Remembered(self._asked)

    def spread_of(self, graph: OpGraph) -> float:  # noqa: ARG002 - part of the protocol
        """Return what was found on families of models that the network had not seen."""
        return self._spread

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op."""
        alone_s = self._specs.ops_s(ops)
        whole_s = sum(seconds * op.count for seconds, op in zip(alone_s, ops, strict=True))
        factor = self._step_s(ops) / whole_s
        return [factor * seconds for seconds in alone_s]

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call, which the network does not tell."""
        return self._specs.launch_s(op)

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph."""
        return self._step_s(graph.ops)

    def _asked(self, ops: Sequence[Op]) -> float:
        return float(self._network.price([ops], self._device, self._setting)[0])
