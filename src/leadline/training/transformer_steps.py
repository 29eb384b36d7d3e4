"""Training steps of transformers: the fitted model with intervals, its shipped file, and predictions of a decoder."""

import math
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device
from leadline.core.workload import Workload
from leadline.estimators.parallelism.fabric import Fabric, job_fabric
from leadline.estimators.ports import Array, State, nest, strings, text_array, unnest
from leadline.estimators.step_time.transformer import (
    MAGNITUDES,
    VALIDATED_LOG_DISTANCE,
    TransformerStep,
    TransformerStepModel,
    decoder_step,
    gpu_generation,
    log_magnitudes,
)
from leadline.files.arrays import read_arrays
from leadline.training.shipped_files import read_shipped
from leadline.uncertainty.normalized_scores import NormalizedScores

Texts = npt.NDArray[np.str_]

ALL, BEYOND = "", ", beyond"
"""The group of all generations, for those with few scores; and the suffix of groups of extrapolations.

Both are part of the file format.
"""
STEP_MODEL_FILE, STEP_MODEL_CARD_FILE = "llm_training.npz", "llm_training.json"
LEVEL = 0.9


class StepModel(Frozen):
    """The fitted model, and the scores of its errors on held-out steps.

    ``scores`` are by generation of GPUs (``gpu_generation``), and those of all under ``ALL``. Steps outside the range
    of the training data have their own scores, because the model's spread means something else there.
    """

    law: TransformerStepModel
    scores: Mapping[str, NormalizedScores]

    def predict(self, steps: Sequence[TransformerStep], level: float) -> tuple[Array, Array, Array]:
        """Return the seconds of n steps, and the ends of their central intervals, each of shape (n,).

        Raises:
            InvalidInput: a device lacks a specification, or a size is not above zero.
        """
        predicted, untested = self.law.predict(steps), self.law.untested_spread(steps)
        spread, groups = tested_spread(predicted.spread, untested), step_groups(steps, predicted.extrapolation)
        low, high = np.empty(len(steps)), np.empty(len(steps))
        for group in np.unique(groups).tolist():
            # Else the scores of all generations, extrapolations first for an extrapolation.
            wider = ALL + BEYOND if group.endswith(BEYOND) else ALL
            rows = groups == group
            scores = next(self.scores[name] for name in (group, wider, ALL) if name in self.scores)
            low[rows], high[rows] = scores.interval(predicted.point[rows], spread[rows], level, untested[rows])
        return predicted.point, low, high

    def dump(self) -> State:
        """Return the state as arrays."""
        state: State = {"generations": text_array(list(self.scores)), **nest("law", self.law.dump())}
        for number, scores in enumerate(self.scores.values()):
            state |= nest(f"scores{number}", scores.dump())
        return state


def load_step_model(state: State) -> StepModel:
    """Restore a model from its state."""
    scores = {
        name: NormalizedScores.load(unnest(f"scores{number}", state))
        for number, name in enumerate(strings(state["generations"]))
    }
    return StepModel(TransformerStepModel.load(unnest("law", state)), scores)


def step_groups(steps: Sequence[TransformerStep], extrapolation: Array) -> Texts:
    """Return the group of each step for the scores: its GPU's generation, and whether it extrapolates."""
    suffixes = [BEYOND * bool(far) for far in extrapolation > 0]
    return np.array([gpu_generation(step.device) + end for step, end in zip(steps, suffixes, strict=True)], np.str_)


def tested_spread(spread: Array, untested: Array) -> Array:
    """Return the part of the spread that errors on other steps can validate."""
    return np.sqrt(np.maximum(spread**2 - untested**2, 0.0))


class StepModelErrors(Frozen):
    """Part of the model's card: training steps, and split to errors in percent (``mape``, ``median``, ``p90``)."""

    rows: int
    errors: dict[str, dict[str, float]]


class DecoderStepPrediction(Frozen):
    """The time of one optimizer step with its interval, parts and reasons.

    Attributes:
        parts_s: seconds of computing by kind, and of communication before any of it is hidden.
        beyond: how many times the model's sizes are outside the training data at most, 1 within. GPUs and microbatches
            are not counted, because the model scales exactly with them.
    """

    step_s: Interval
    parts_s: Mapping[str, float]
    sentences: tuple[str, ...]
    beyond: float = 1.0


def predict_decoder_step(
    model: StepModel, job: TracedJob, workload: Workload, device: Device, *, fabric: Fabric | None = None
) -> DecoderStepPrediction:
    """Predict a decoder's training step from the trace of one GPU with the whole model.

    Raises:
        InvalidInput: the model does not apply; the message says why.
    """
    fabric = fabric or job_fabric(workload, device, None, None)
    step = decoder_step(job, workload, device, fabric)
    slower, faster = fabric.link_ends(device)
    ends = (device, fabric.island_bytes_per_s), (faster, fabric.high_bytes_per_s), (slower, fabric.low_bytes_per_s)
    steps = [replace(step, device=each, node_bytes_per_s=rate or None) for each, rate in ends]
    point, low, high = model.predict(steps, LEVEL)
    parts = {name: float(seconds[0]) for name, seconds in model.law.parts([step]).items()}
    on_usual_network = Interval(float(point[0]), float(low[0]), float(high[0]), LEVEL)
    interval = on_usual_network.widened(float(point[0] / point[1]), float(point[2] / point[0]))
    sentences = (*_sentences(model, step), *fabric.assumptions)
    return DecoderStepPrediction(interval, parts, sentences, _times_outside(model, step))


@cache
def shipped_step_model() -> StepModel:
    """Return the model that comes with Leadline."""
    return load_step_model(read_arrays(read_shipped(STEP_MODEL_FILE), STEP_MODEL_FILE))


@cache
def shipped_step_model_errors() -> StepModelErrors:
    """Return the errors of the model that comes with Leadline."""
    return msgspec.json.decode(read_shipped(STEP_MODEL_CARD_FILE), type=StepModelErrors)


def _times_outside(model: StepModel, step: TransformerStep) -> float:
    magnitudes, law = log_magnitudes([step])[0], model.law
    outside = np.maximum(np.maximum(magnitudes - law.most, law.least - magnitudes), 0.0)
    sizes = [number for number, name in enumerate(MAGNITUDES) if name not in ("GPUs", "microbatches")]
    return math.exp(float(outside[sizes].max()))


def _sentences(model: StepModel, step: TransformerStep) -> tuple[str, ...]:
    """Return the basis of a prediction, and where it extrapolates."""
    law, generation = model.law, gpu_generation(step.device)
    sentences = [
        f"step time from a model fitted on measured training steps of MPT models ({', '.join(law.generations)})"
    ]
    magnitudes = log_magnitudes([step])[0]
    for name, size, least, most in zip(MAGNITUDES, magnitudes, law.least, law.most, strict=True):
        end = most if size > most else least
        if size > most + 1e-9 or size < least - 1e-9:
            side = "above the largest" if size > most else "below the smallest"
            wider = "; the interval is wider for it" if abs(size - end) > VALIDATED_LOG_DISTANCE else ""
            sentences.append(
                f"extrapolating: {name} ({math.exp(size):.4g}), {math.exp(abs(size - end)):.3g} times {side} in the "
                f"training data ({math.exp(end):.4g}){wider}"
            )
    if generation not in law.generations:
        sentences.append(
            f"extrapolating: no step on {generation} is in the training data; {step.device.name} is predicted from its "
            "specifications, with a wider interval"
        )
    if not step.usual:
        sentences.append("the block sizes differ from those of the measured models: the interval is wider for it")
    return tuple(sentences)
