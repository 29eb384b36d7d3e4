"""Choose what prices a device's kernels: its own sweep, or the estimator that was least off on such graphs."""

from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import KernelModel
from leadline.estimators.calibrated import CalibratedKernels
from leadline.estimators.roofline import SpecsKernels


def kernels_of(device: Device, job: TracedJob) -> KernelModel:
    """Return the price list of a device for the ops of a job.

    Raises:
        InvalidInput: the catalog lacks a figure without which the device cannot be priced at all.
    """
    if device.calibration is not None and device.calibration.timings:
        return CalibratedKernels(device)
    if device.kind is not DeviceKind.GPU:
        return SpecsKernels(device)
    from leadline.app.learned_kernels import least_off  # noqa: PLC0415 - numpy loads when a GPU is asked about

    return least_off(device, job.step)
