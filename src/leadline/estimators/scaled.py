"""A price list times a factor that runs on the device told."""

from collections.abc import Sequence
from dataclasses import dataclass

from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph
from leadline.core.ports import KernelModel

ADAPTED = ", adapted"
"""What is added to the name of an estimator that own runs changed."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A ``KernelModel`` whose every time is ``factor`` times that of ``kernels``; as unsure as they if not told."""

    kernels: KernelModel
    factor: float
    spread: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The method, and that it was adapted."""
        return self.kernels.name + ADAPTED

    @property
    def tier(self) -> Tier:
        """Learned: from runs on the device."""
        return Tier.LEARNED

    @property
    def host_spread(self) -> float:
        """None of its own: the runs were launched by this host."""
        return 0.0

    def spread_of(self, graph: OpGraph) -> float:
        """Return what was found on models left out of the runs."""
        return self.kernels.spread_of(graph) if self.spread is None else self.spread

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op."""
        return [self.factor * seconds for seconds in self.kernels.ops_s(ops)]

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call."""
        return self.factor * self.kernels.launch_s(op)

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph."""
        return self.factor * self.kernels.step_s(graph)
