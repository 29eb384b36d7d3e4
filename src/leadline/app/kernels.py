"""Choose what prices a device's kernels: own steps, a CPU's sweep, or the estimator that was least off."""

from leadline.app import settings
from leadline.core.errors import InvalidInput
from leadline.core.estimate import EstimatorChoice
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import KernelModel
from leadline.estimators.calibrated import CalibratedKernels
from leadline.estimators.roofline import SpecsKernels


def kernels_of(device: Device, job: TracedJob, choice: EstimatorChoice | None = None) -> KernelModel:
    """Return the price list of a device for the ops of a job: what own steps made of it, else what is shipped.

    A ``choice`` is taken, whatever own steps say.

    Raises:
        InvalidInput: the catalog lacks a figure without which the device cannot be priced at all, the chosen estimator
            cannot price it, or what own steps made of it cannot be read.
        MissingExtra: the choice needs a package that is not installed.
    """
    folder = settings.adapted_dir()
    if choice is None and folder.is_dir():
        from leadline.app.own_kernels import adapted  # noqa: PLC0415 - numpy loads where something was adapted

        if (own := adapted(device, job, folder, shipped_kernels_of)) is not None:
            return own
    return shipped_kernels_of(device, job, choice)


def shipped_kernels_of(device: Device, job: TracedJob, choice: EstimatorChoice | None = None) -> KernelModel:
    """Return the price list without own steps: the choice, else a CPU's sweep, or the estimator that was least off.

    Raises:
        InvalidInput: the catalog lacks a figure without which the device cannot be priced at all, or the chosen
            estimator cannot price it.
        MissingExtra: the choice needs a package that is not installed.
    """
    if device.kind is not DeviceKind.GPU:
        return _priced_alone(device, choice)
    from leadline.app import learned_kernels  # noqa: PLC0415 - numpy loads when a GPU is asked about

    if choice is not None:
        return learned_kernels.chosen(device, job.step, choice)
    return learned_kernels.least_off(device, job.step)


def _priced_alone(device: Device, choice: EstimatorChoice | None) -> KernelModel:
    """Return the price list of a device about which nothing was learned from others."""
    if choice in (EstimatorChoice.LAW, EstimatorChoice.NETWORK, EstimatorChoice.BLACK_BOX):
        raise InvalidInput(
            f"{device.name} is a {device.kind.value}, but the {choice.value} was learned on GPUs: choose "
            f"{EstimatorChoice.KERNELS.value} once it is calibrated, or {EstimatorChoice.SPECS.value}"
        )
    if choice is EstimatorChoice.KERNELS or (choice is None and device.is_calibrated):
        return CalibratedKernels(device)
    return SpecsKernels(device)
