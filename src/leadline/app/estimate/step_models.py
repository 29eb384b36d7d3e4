"""The training-step model of a device: shipped, adapted to measured steps, or in a measured host."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import numpy as np

from leadline.app.estimate.kernel_models import load_adapted_steps
from leadline.core.errors import InvalidInput
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device
from leadline.core.units import format_duration
from leadline.core.workload import Workload
from leadline.estimators.parallelism.fabric import job_fabric
from leadline.estimators.parallelism.training_step import TrainingStep
from leadline.estimators.ports import Array
from leadline.estimators.step_time.adaptation import model_folds, spread_of_errors
from leadline.estimators.step_time.selection import Domain, StepGroup, find_step_group
from leadline.training.adapted_steps import AdaptedWholeSteps
from leadline.training.decoder_steps import (
    DecoderStepModel,
    make_training_step,
    shipped_step_model,
    shipped_step_model_errors,
)
from leadline.training.step_adaptation import (
    TRANSFORMERS_HOST,
    TRANSFORMERS_SPREAD,
    AdaptedCoefficients,
    adapt_step_model,
    with_coefficients,
    with_measured_host,
)

DECODER_MODEL = "training-step model"
WHOLE_STEPS = StepGroup(Domain.LANGUAGE, "half", "training")
"""Steps that the model predicts, apart from those that no kernel model covers."""
LEAST_WHOLE_STEPS = 3
"""With fewer, errors on left-out models were larger than without adaptation."""


def step_model_of(device: Device, launch_s: float | None = None) -> tuple[DecoderStepModel, tuple[str, ...]]:
    """Return the model for a device, and the reasons for its accuracy.

    ``launch_s`` are the host's seconds for an op; by default those of the device's adaptation or calibration.

    Raises:
        InvalidInput: the adaptation of the device cannot be read.
    """
    model, adapted = shipped_step_model(), load_adapted_steps(device)
    measured_s = launch_s or device.launch_s
    if adapted is not None and adapted.coefficients is not None and adapted.card.whole_steps is not None:
        record = adapted.card.whole_steps
        model = with_coefficients(model, adapted.coefficients)
        why = (
            f"estimated with the {DECODER_MODEL}, adapted to {record.runs} measured steps ({record.source}): error "
            f"{record.error:.0%} on left-out models, {record.before:.0%} before; its host takes "
            f"{format_duration(record.launch_s)} an op"
        )
        measured_s = launch_s
    else:
        medians = [figures["median"] for figures in shipped_step_model_errors().errors.values()]
        why = (
            f"estimated with the {DECODER_MODEL}: median error of {min(medians):.0f} to {max(medians):.0f} % on "
            f"{len(medians)} sources of published steps that were left out of its fit"
        )
    if not measured_s:
        return model, (why,)
    if launch_s:
        host = f"the host takes {format_duration(launch_s)} an op (--launch)"
        return with_measured_host(model, launch_s), (why, host)
    host = (
        f"the host takes {format_duration(measured_s)} an op of plain modules, by leadline calibrate; assumed: "
        f"{TRANSFORMERS_HOST} times that in a model of transformers"
    )
    return with_measured_host(model, TRANSFORMERS_HOST * measured_s, TRANSFORMERS_SPREAD), (why, host)


def find_training_step(workload: Workload, job: TracedJob, device: Device) -> TrainingStep | None:
    """Return the step of a job that the model predicts as a whole; ``None`` for other jobs."""
    if find_step_group(job.step, device) != WHOLE_STEPS:
        return None
    with suppress(InvalidInput):  # the model does not apply
        return make_training_step(workload, job, device, job_fabric(workload, device, None, None))
    return None


def adapt_whole_steps(
    steps: Sequence[TrainingStep], step_s: Array, models: Sequence[str], source: str
) -> tuple[AdaptedWholeSteps, AdaptedCoefficients]:
    """Return the record of a device's steps, with errors on left-out models, and its coefficients.

    ``step_s`` (n,) are the measured seconds of the steps, and ``models`` their models.
    """
    shipped = shipped_step_model()
    errors = np.empty(len(steps))
    for training, test in model_folds(models):
        coefficients = adapt_step_model(shipped, [steps[i] for i in training], step_s[training])
        predicted_s = with_coefficients(shipped, coefficients).seconds([steps[i] for i in test])
        errors[test] = np.log(step_s[test] / predicted_s)
    coefficients = adapt_step_model(shipped, steps, step_s)
    before = np.abs(shipped.seconds(steps) / step_s - 1)
    record = AdaptedWholeSteps(
        estimator=DECODER_MODEL, launch_s=coefficients.launch_s, error=float(np.mean(np.abs(np.expm1(-errors)))),
        before=float(np.mean(before)), spread=spread_of_errors(errors), runs=len(steps), source=source,
        made_on=datetime.now(UTC).date().isoformat(),
    )  # fmt: skip
    return record, coefficients
