"""Choose what prices a device's kernels: own steps, a CPU's sweep, or the estimator that was least off."""

from leadline.app import settings
from leadline.core.errors import InvalidInput
from leadline.core.estimate import EstimatorChoice
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import KernelModel
from leadline.core.workload import Phase, Workload
from leadline.estimators.step_time.calibrated_kernels import CalibratedKernels
from leadline.estimators.step_time.roofline import RooflineKernels
from leadline.estimators.white_box import WholeStep


def select_kernels(device: Device, job: TracedJob, choice: EstimatorChoice | None = None) -> KernelModel:
    """Return the price list of a device for the ops of a job: what own steps made of it, else what is shipped.

    A ``choice`` is taken, whatever own steps say.

    Raises:
        InvalidInput: the catalog lacks a figure without which the device cannot be priced at all, the chosen estimator
            cannot price it, or what own steps made of it cannot be read.
        MissingExtra: the choice needs a package that is not installed.
    """
    folder = settings.adapted_dir()
    if choice is None and folder.is_dir():
        from leadline.app.estimate.kernel_models import adapted_kernels  # noqa: PLC0415 - numpy loads where something was adapted

        if (own := adapted_kernels(device, job, folder, select_shipped_kernels)) is not None:
            return own
    return select_shipped_kernels(device, job, choice)


def select_shipped_kernels(device: Device, job: TracedJob, choice: EstimatorChoice | None = None) -> KernelModel:
    """Return the price list without own steps: the choice, else a CPU's sweep, or the estimator that was least off.

    Raises:
        InvalidInput: the catalog lacks a figure without which the device cannot be priced at all, or the chosen
            estimator cannot price it.
        MissingExtra: the choice needs a package that is not installed.
    """
    if device.kind is not DeviceKind.GPU:
        return _priced_alone(device, choice)
    from leadline.app.estimate import kernel_models  # noqa: PLC0415 - numpy loads when a GPU is asked about

    if choice is not None:
        return kernel_models.chosen_kernels(device, job.step, choice)
    return kernel_models.most_accurate_kernels(device, job.step)


def _priced_alone(device: Device, choice: EstimatorChoice | None) -> KernelModel:
    """Return the price list of a device about which nothing was learned from others."""
    if choice in (EstimatorChoice.OP_UTILIZATION, EstimatorChoice.NETWORK, EstimatorChoice.BLACK_BOX):
        raise InvalidInput(
            f"{device.name} is a {device.kind.value}, but the {choice.value} was learned on GPUs: choose "
            f"{EstimatorChoice.KERNELS.value} once it is calibrated, or {EstimatorChoice.SPECS.value}"
        )
    if choice is EstimatorChoice.KERNELS or (choice is None and device.is_calibrated):
        return CalibratedKernels(device)
    return RooflineKernels(device)


DECODER_MODEL = "law of decoders' steps"
FARTHEST = 2.0
"""A model whose sizes lie farther outside those learned from is priced by its kernels, of which the law knows none."""


def predict_decoder_step(
    workload: Workload, job: TracedJob, device: Device, nodes: int, interconnect: str | None
) -> WholeStep | None:
    """Return what the law says of a training step; ``None`` where it does not apply, or own steps know better."""
    if device.kind is not DeviceKind.GPU or workload.phase is not Phase.TRAINING:
        return None
    from leadline.app.estimate.kernel_models import load_adapted_steps  # noqa: PLC0415 - numpy loads on use
    from leadline.estimators.step_time.selection import Domain, StepGroup, find_step_group  # noqa: PLC0415 - see above

    group = StepGroup(Domain.LANGUAGE, "half", "training")
    if find_step_group(job.step, device) != group:
        return None
    own = load_adapted_steps(device, settings.adapted_dir())
    if own is not None and any(one.group == group for one in own.card.records):
        return None
    return _asked(workload, job, device, nodes, interconnect)


def _asked(
    workload: Workload, job: TracedJob, device: Device, nodes: int, interconnect: str | None
) -> WholeStep | None:
    from leadline.training.transformer_steps import predict_decoder_step, shipped_step_model, shipped_step_model_card  # noqa: PLC0415 - numpy loads on use

    try:
        told = predict_decoder_step(shipped_step_model(), job, workload, device, nodes=nodes, interconnect=interconnect)
    except InvalidInput:
        return None  # other layers, another precision, another maker: kernels and links are priced one by one
    if told.beyond > FARTHEST:
        return None
    card = shipped_step_model_card()
    errors = [figures["mape"] for figures in card.errors.values()]
    why = (
        f"priced by the {DECODER_MODEL}: {min(errors):.0f} to {max(errors):.0f}% off on steps of {card.rows} runs that it had "
        "not seen (more GPUs, longer sequences, another generation)"
    )
    return WholeStep(DECODER_MODEL, told.step_s, dict(told.parts_s), (why, *told.sentences))
