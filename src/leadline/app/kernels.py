"""Choose what prices a device's kernels: own steps, its sweep, or the estimator that was least off on such graphs."""

from leadline.app import settings
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import KernelModel
from leadline.estimators.calibrated import CalibratedKernels
from leadline.estimators.roofline import SpecsKernels


def kernels_of(device: Device, job: TracedJob) -> KernelModel:
    """Return the price list of a device for the ops of a job: what own steps made of it, else what is shipped.

    Raises:
        InvalidInput: the catalog lacks a figure without which the device cannot be priced at all, or what own steps
            made of it cannot be read.
    """
    folder = settings.adapted_dir()
    if folder.is_dir():
        from leadline.app.own_kernels import adapted  # noqa: PLC0415 - numpy loads where something was adapted

        if (own := adapted(device, job, folder, shipped_kernels_of)) is not None:
            return own
    return shipped_kernels_of(device, job)


def shipped_kernels_of(device: Device, job: TracedJob) -> KernelModel:
    """Return the price list without own steps: the device's sweep, the least-off estimator, or the maker's figures.

    Raises:
        InvalidInput: the catalog lacks a figure without which the device cannot be priced at all.
    """
    if device.is_calibrated:
        return CalibratedKernels(device)
    if device.kind is not DeviceKind.GPU:
        return SpecsKernels(device)
    from leadline.app.learned_kernels import least_off  # noqa: PLC0415 - numpy loads when a GPU is asked about

    return least_off(device, job.step)
