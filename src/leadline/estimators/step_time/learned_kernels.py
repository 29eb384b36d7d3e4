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
from leadline.estimators.step_time.kernel_table import KernelTable, join_kernel_tables, tabulate_ops
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

    def columns(ops: Sequence[Op]) -> KernelTable:
        return tabulate_ops(ops, names)

    return RecentCache(columns)


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
        kernels = self._tables(ops)
        alike, where = _distinct(kernels)
        op_times_s: list[float] = self._priced(kernels.at(alike))[where].tolist()
        return op_times_s

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call; a view costs as much as a kernel."""
        return self.call_s * (1 + FURTHER * (op.kernels - 1))

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph: the host runs ahead, so the slower of the two decides."""
        kernels = self._tables(graph.ops)
        alike, where = _distinct(kernels)
        kernels_s = float(self._priced(kernels.at(alike))[where] @ kernels.count)
        return max(kernels_s, float(_launches(kernels, self.call_s)))

    def _priced(self, kernels: KernelTable) -> Array:
        return self.factor * _alone_s(self._fitted, kernels, self._boards, np.zeros(len(kernels), np.int64))


def predict_steps_s(fitted: FittedKernels, configurations: Sequence[KernelTable], devices: Sequence[Device]) -> Array:
    """Return the step seconds (c,) of each configuration on its GPU, in one batch.

    Raises:
        InvalidInput: a device is no GPU, or lacks specifications.
    """
    models = {device.name: LearnedKernels(fitted, device) for device in devices}
    place = {name: i for i, name in enumerate(models)}
    boards = DeviceFeatures.of(list({device.name: device for device in devices}.values()))
    sizes = [len(configuration) for configuration in configurations]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    where = np.array([place[device.name] for device in devices], np.int64)[owner]
    kernels = join_kernel_tables(configurations)
    alike, back = _distinct(kernels, where)
    kernel_s = _alone_s(fitted, kernels.at(alike), boards, where[alike])[back]
    factor = np.array([models[device.name].factor for device in devices])
    busy_s = factor * np.bincount(owner, kernel_s * kernels.count, minlength=len(sizes))
    launch_s = np.array([models[device.name].call_s for device in devices])
    calls = np.bincount(owner, kernels.count * (1 + FURTHER * (kernels.launched - 1)), minlength=len(sizes))
    step_times_s: Array = np.maximum(busy_s, calls * launch_s)
    return step_times_s


def _alone_s(
    fitted: FittedKernels, kernels: KernelTable, boards: DeviceFeatures, where: npt.NDArray[np.int64]
) -> Array:
    kernel_s = np.zeros(len(kernels))
    runs = np.flatnonzero((kernels.moved > 0) | (kernels.flops > 0))  # a view runs no kernel
    kernel_s[runs] = fitted.predict(kernels.at(runs), boards, where[runs], queued=True)[0]
    return kernel_s


def _launches(kernels: KernelTable, launch_s: float) -> float:
    return launch_s * float(kernels.count @ (1 + FURTHER * (kernels.launched - 1)))


def _distinct(
    kernels: KernelTable, where: npt.NDArray[np.int64] | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return positions of distinct kernels, and for each kernel the index of its distinct one."""
    columns = (
        kernels.law, kernels.dtype, kernels.name, kernels.b, kernels.m, kernels.n, kernels.k, kernels.work,
        kernels.fast_m, kernels.rows, kernels.columns, kernels.width, kernels.moved,
        np.zeros(len(kernels)) if where is None else where,
    )  # fmt: skip
    table = np.ascontiguousarray(np.column_stack(columns).astype(np.float64))
    keys = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    return first.astype(np.int64), back.ravel().astype(np.int64)
