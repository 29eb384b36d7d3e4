"""Choose the estimator of a step: adapted steps, a CPU's calibration, or the most accurate shipped estimator."""

from leadline.app import settings
from leadline.core.errors import InvalidInput
from leadline.core.estimate import EstimatorChoice
from leadline.core.graph import OpKind, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import KernelModel
from leadline.core.workload import ModelKind, Phase, Recompute, Workload
from leadline.estimators.parallelism.fabric import Fabric
from leadline.estimators.step_time.calibrated_kernels import CalibratedKernels
from leadline.estimators.step_time.power_limit import describe_power_limit
from leadline.estimators.step_time.roofline import RooflineKernels
from leadline.estimators.white_box import WholeStep


def select_kernels(device: Device, job: TracedJob, choice: EstimatorChoice | None = None) -> KernelModel:
    """Return the kernel model of a device for a job: adapted to measured steps if there are any, else the shipped one.

    A ``choice`` overrides adapted steps.

    Raises:
        InvalidInput: the catalog lacks a spec that every estimator needs, the chosen estimator does not cover the
            device, or its adaptation cannot be read.
        MissingExtra: the choice needs a package that is not installed.
    """
    if settings.adapted_dir().is_dir():
        from leadline.app.estimate.kernel_models import (  # noqa: PLC0415 - numpy loads on use
            adapted_kernels,
            in_adapted_host,
        )

        device = in_adapted_host(device)
        if choice is None and (adapted := adapted_kernels(device, job, select_shipped_kernels)) is not None:
            return adapted
    return select_shipped_kernels(device, job, choice)


def select_shipped_kernels(device: Device, job: TracedJob, choice: EstimatorChoice | None = None) -> KernelModel:
    """Return the kernel model without adapted steps: the choice, a CPU's calibration, or the most accurate estimator.

    Raises as ``select_kernels``.
    """
    if device.kind is not DeviceKind.GPU:
        return _kernels_without_training_data(device, job, choice)
    from leadline.app.estimate import kernel_models  # noqa: PLC0415 - numpy loads on use

    if choice is not None:
        return kernel_models.chosen_kernels(device, job.step, choice)
    return kernel_models.most_accurate_kernels(device, job.step)


def _kernels_without_training_data(device: Device, job: TracedJob, choice: EstimatorChoice | None) -> KernelModel:
    """Return the kernel model of a device that no shipped estimator was trained on."""
    if choice in (EstimatorChoice.OP_UTILIZATION, EstimatorChoice.NETWORK, EstimatorChoice.BLACK_BOX):
        raise InvalidInput(
            f"{device.name} is a {device.kind.value}, but the {choice.value} estimator was trained on "
            f"GPUs: choose {EstimatorChoice.KERNELS.value} once it is calibrated, or "
            f"{EstimatorChoice.SPECS.value}"
        )
    if choice is EstimatorChoice.KERNELS or (choice is None and device.is_calibrated):
        return CalibratedKernels(device, job.loop.mapped_block_bytes)
    return RooflineKernels(device)


def predict_decoder_step(workload: Workload, job: TracedJob, device: Device, fabric: Fabric) -> WholeStep | None:
    """Return the prediction of a transformer's training step as a whole.

    ``None`` if kernels must be estimated one by one, since the model does not apply.

    Raises:
        InvalidInput: the model does not apply, and no kernel has the precision or recomputation; or the adaptation of
            the device cannot be read.
    """
    narrow = workload.precision is not None and workload.precision.is_narrow and workload.phase is Phase.TRAINING
    needed = narrow or workload.recompute is Recompute.SELECTIVE
    if not needed and (device.kind is not DeviceKind.GPU or workload.phase is not Phase.TRAINING):
        return None
    from leadline.app.estimate.step_models import DECODER_MODEL, WHOLE_STEPS, step_model_of  # noqa: PLC0415 - numpy loads on use
    from leadline.estimators.step_time.selection import find_step_group  # noqa: PLC0415 - see above
    from leadline.training import decoder_steps  # noqa: PLC0415 - see above

    if not needed and find_step_group(job.step, device) != WHOLE_STEPS:
        return None
    model, reasons = step_model_of(device, workload.launch_s)
    try:
        prediction = decoder_steps.predict_decoder_step(model, job, workload, device, fabric)
    except InvalidInput:
        if needed:
            raise
        return None
    return WholeStep(DECODER_MODEL, prediction.step_s, dict(prediction.parts_s), (*reasons, *prediction.sentences))


ENGINE_ERRORS = (
    "estimated with measured kernels of serving engines: median error by number format of 8 to 14 % on 170 published "
    "answers of dense models, and of 20 to 27 % on 89 of models with experts"
)
UNTESTED_GPU = 0.35
"""Deviation on GPUs of generations without measured products, as for training steps: an assumption."""


def select_engine_kernels(workload: Workload, job: TracedJob, device: Device) -> KernelModel | None:
    """Return the kernels of a serving engine for a language model's inference in 16 bits or fewer on a GPU.

    ``None`` where no engine was measured: other models, devices, or number formats.
    """
    attends = any(op.kind is OpKind.ATTENTION for op in job.step.ops)
    wide = any(op.kind is OpKind.GEMM and op.dtype in ("float32", "tf32") and op.count > 1 for op in job.step.ops)
    served = workload.phase is Phase.INFERENCE and workload.model.kind is ModelKind.HF_CONFIG and attends and not wide
    if not served or device.kind is not DeviceKind.GPU or device.vendor != "nvidia":
        return None
    from leadline.estimators.engine_kernels import EngineKernels  # noqa: PLC0415 - numpy loads on use
    from leadline.training.decoder_steps import shipped_step_model  # noqa: PLC0415 - see above

    curves, untested = shipped_step_model().curves, 0.0
    reasons = [ENGINE_ERRORS, *(describe_power_limit(device) if device.power_limit_w else ())]
    if curves.curve_of(device.compute_capability or "", "bfloat16") is None:
        untested = UNTESTED_GPU
        name = device.architecture or device.name
        reasons.append(f"extrapolating: no matrix product on {name} was measured; wider interval")
    try:
        return EngineKernels(curves, device, untested=untested, reasons=tuple(reasons))
    except InvalidInput:
        return None
