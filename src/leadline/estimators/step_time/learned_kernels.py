"""The fitted kernel model as a ``KernelModel``, and for many configurations at once."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph
from leadline.core.hardware import Device
from leadline.estimators.ports import Array
from leadline.estimators.recent_cache import RecentCache
from leadline.estimators.step_time.device_features import DeviceFeatures, require_gpu
from leadline.estimators.step_time.fitted_kernels import FittedKernels
from leadline.estimators.step_time.kernel_table import KernelTable, distinct_rows, tabulate_ops
from leadline.estimators.step_time.roofline import HOST_SPREAD, LAUNCH_S

# Standard deviation of ln(true ÷ predicted) of a whole step: of the 45 runs of transformers published with NeuSight,
# each on a device whose kernels and runs were left out.
SPREAD = 0.12

# Share of a launch that each further kernel of one call takes.
FURTHER = 0.4


# Makes columns of ops; remembers the last lists, so that one graph is laid out once for all devices.
KernelTableFactory = Callable[[Sequence[Op]], KernelTable]


def kernel_table_factory(fitted: FittedKernels) -> KernelTableFactory:
    """Return a factory of the tables that ``fitted`` predicts from."""
    names = {name: i for i, name in enumerate(fitted.names)}
    return RecentCache[Sequence[Op], KernelTable](lambda ops: tabulate_ops(ops, names))


class LearnedKernels:
    """A ``KernelModel`` fitted to kernels of other devices, and of this one where measured.

    Raises:
        InvalidInput: the device is no GPU, or lacks its memory bandwidth or an op's dtype peak.
    """

    name = "learned kernels"
    tier = Tier.LEARNED
    host_spread = HOST_SPREAD

    def __init__(
        self, fitted: FittedKernels, device: Device, *, spread: float = SPREAD, reasons: tuple[str, ...] = (),
        tables: KernelTableFactory | None = None,
    ) -> None:  # fmt: skip
        require_gpu(device, "kernels were")
        self.reasons = reasons
        self._spread = spread
        self._fitted = fitted
        self._boards = DeviceFeatures.of([device])
        self._tables = tables or kernel_table_factory(fitted)
        self.factor = fitted.factor(device.name, device.vendor)
        figures = device.calibration.figures if device.calibration else {}
        self.call_s = figures.get("launch_s", LAUNCH_S[device.kind])

    def spread_of(self, graph: OpGraph) -> float:  # noqa: ARG002 - part of the protocol
        """Return the spread on left-out devices."""
        return self._spread

    def op_s(self, op: Op) -> float:
        """Return the seconds of one call of ``op``."""
        return self.ops_s([op])[0]

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op; identical ops are predicted once."""
        op_times_s: list[float] = self._priced(self._tables(ops)).tolist()
        return op_times_s

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call; a view costs as much as a kernel."""
        return self.call_s * (1 + FURTHER * (op.kernels - 1))

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph: the host runs ahead, so the slower of the two decides."""
        kernels = self._tables(graph.ops)
        launches = float(kernels.count @ (1 + FURTHER * (kernels.launched - 1)))
        return max(float(self._priced(kernels) @ kernels.count), self.call_s * launches)

    def _priced(self, kernels: KernelTable) -> Array:
        alike, place = distinct_rows(kernel_keys(kernels))
        seconds: Array = self.factor * alone_s(
            self._fitted, kernels.at(alike), self._boards, np.zeros(len(alike), np.int64)
        )
        return seconds[place]


def alone_s(fitted: FittedKernels, kernels: KernelTable, boards: DeviceFeatures, where: npt.NDArray[np.int64]) -> Array:
    """Return the seconds (n,) of kernels on the devices ``where`` of ``boards``."""
    kernel_s = np.zeros(len(kernels))
    runs = np.flatnonzero((kernels.moved > 0) | (kernels.flops > 0))  # a view runs no kernel
    kernel_s[runs] = fitted.predict(kernels.at(runs), boards, where[runs], queued=True)[0]
    return kernel_s


def kernel_keys(kernels: KernelTable) -> Array:
    """Return the columns (n, 13) that decide a kernel's time."""
    return np.column_stack((
        kernels.law, kernels.dtype, kernels.name, kernels.b, kernels.m, kernels.n, kernels.k, kernels.work,
        kernels.fast_m, kernels.rows, kernels.columns, kernels.width, kernels.moved,
    )).astype(np.float64)  # fmt: skip
