"""Training steps of transformers: the fitted model with intervals, its shipped file, and predictions of a decoder."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device
from leadline.core.workload import Workload
from leadline.estimators.parallelism.collectives import network_bytes_per_s
from leadline.estimators.ports import State, nest, strings, text_array, unnest
from leadline.estimators.step_time.transformer import (
    VALIDATED_LOG_DISTANCE,
    TransformerStepModel,
    fit_transformer_steps,
    load_transformer_steps,
)
from leadline.estimators.step_time.transformer_terms import (
    MAGNITUDES,
    TransformerStep,
    decoder_step,
    gpu_generation,
    log_magnitudes,
)
from leadline.training.shipped_files import read_shipped
from leadline.uncertainty.normalized_scores import NormalizedScores

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.str_]

FOLDS = 5
SEED = 0
ENOUGH = 19
"""Scores that a generation of GPUs needs for intervals of its own."""
ALL, BEYOND = "", ", beyond"
"""The group of all generations, for those with few scores; and the suffix of groups of extrapolations.

Both are part of the file format.
"""
STEP_MODEL_FILE, STEP_MODEL_CARD_FILE = "llm_training.npz", "llm_training.json"
LEVEL = 0.9


@dataclass(frozen=True, slots=True)
class StepModel:
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
        spread, groups = _tested_spread(predicted.spread, untested), _groups(steps, predicted.extrapolation)
        low, high = np.empty(len(steps)), np.empty(len(steps))
        for name in np.unique(groups):
            rows, scores = groups == name, self._scores_of(str(name))
            low[rows], high[rows] = scores.interval(predicted.point[rows], spread[rows], level, untested[rows])
        return predicted.point, low, high

    def _scores_of(self, group: str) -> NormalizedScores:
        """Return the scores of a group, or else of all generations, extrapolations first for an extrapolation."""
        wider = ALL + BEYOND if group.endswith(BEYOND) else ALL
        return next(self.scores[name] for name in (group, wider, ALL) if name in self.scores)

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
    return StepModel(load_transformer_steps(unnest("law", state)), scores)


def fit_step_model(
    steps: Sequence[TransformerStep],
    elapsed_s: Array,
    configuration: Sequence[str],
    extrapolations: Sequence[tuple[Mask, Mask]] = (),
) -> StepModel:
    """Fit the model of n measured steps, and score its errors by cross-validation.

    Args:
        steps: measured steps.
        elapsed_s: their times, of shape (n,).
        configuration: of each step; steps of one configuration are held out together.
        extrapolations: further splits to score, as masks of shape (n,) of the steps to fit on and to predict.

    Raises:
        InvalidInput: too few steps, a time not above zero, or a device without a specification.
    """
    names, place = np.unique(np.asarray(configuration, np.str_), return_inverse=True)
    folds = np.random.default_rng(SEED).integers(0, FOLDS, len(names))[place]
    crossed = [(folds != fold, folds == fold) for fold in range(FOLDS) if 0 < (folds == fold).sum() < len(folds)]
    parts = [_held_out_errors(steps, elapsed_s, *split) for split in (*crossed, *extrapolations)]
    errors, spreads = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    groups = np.concatenate([part[2] for part in parts])
    far = np.char.endswith(groups, BEYOND)
    scores = {ALL: NormalizedScores.of(errors, spreads)}
    for name, rows in [(ALL + BEYOND, far), *((str(group), groups == group) for group in np.unique(groups))]:
        if rows.sum() >= ENOUGH:
            scores[name] = NormalizedScores.of(errors[rows], spreads[rows])
    return StepModel(fit_transformer_steps(steps, elapsed_s.tolist()), scores)


def _held_out_errors(
    steps: Sequence[TransformerStep], elapsed_s: Array, fitted: Mask, held_out: Mask
) -> tuple[Array, Array, Texts]:
    """Return ln(measured ÷ predicted) of the held-out steps, the model's spread, and their groups."""
    model = fit_transformer_steps([steps[i] for i in np.flatnonzero(fitted).tolist()], elapsed_s[fitted].tolist())
    scored = [steps[i] for i in np.flatnonzero(held_out).tolist()]
    predicted = model.predict(scored)
    errors = np.log(elapsed_s[held_out] / predicted.point)
    spread = _tested_spread(predicted.spread, model.untested_spread(scored))
    return errors, spread, _groups(scored, predicted.extrapolation)


def _groups(steps: Sequence[TransformerStep], extrapolation: Array) -> Texts:
    names = [
        gpu_generation(step.device) + BEYOND * bool(far) for step, far in zip(steps, extrapolation > 0, strict=True)
    ]
    return np.array(names, np.str_)


def _tested_spread(spread: Array, untested: Array) -> Array:
    """Return the part of the spread that errors on other steps can validate."""
    return np.sqrt(np.maximum(spread**2 - untested**2, 0.0))


class StepModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """Training data and errors of the model.

    Attributes:
        errors: split to errors in percent (``mape``, ``median``, ``p90``) and the number of rows ``n``.
        coverage: split and group to the percentage of measurements in the 90 % intervals, with the number of rows.
        coefficients: of the model, by name.
    """

    schema: str
    made_on: str
    sources: tuple[str, ...]
    licence: str
    rows: int
    devices: tuple[str, ...]
    ranges: dict[str, tuple[float, float]]
    errors: dict[str, dict[str, float]]
    coverage: dict[str, dict[str, dict[str, float]]]
    coefficients: dict[str, float]
    refused: tuple[str, ...]
    limits: tuple[str, ...]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class DecoderStepPrediction:
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
    model: StepModel,
    job: TracedJob,
    workload: Workload,
    device: Device,
    *,
    nodes: int = 1,
    interconnect: str | None = None,
    level: float = LEVEL,
) -> DecoderStepPrediction:
    """Predict a decoder's training step from the trace of one GPU with the whole model.

    Raises:
        InvalidInput: the model does not apply; the message says why.
    """
    step = decoder_step(job, workload, device, nodes=nodes, interconnect=interconnect)
    point, low, high = model.predict([step], level)
    parts = {name: float(seconds[0]) for name, seconds in model.law.parts([step]).items()}
    interval = Interval(float(point[0]), float(low[0]), float(high[0]), level)
    return DecoderStepPrediction(interval, parts, _sentences(model, step), _times_outside(model, step))


@cache
def shipped_step_model() -> StepModel:
    """Return the model that comes with Leadline."""
    return read_step_model(read_shipped(STEP_MODEL_FILE), f"the shipped {STEP_MODEL_FILE}")


@cache
def shipped_step_model_card() -> StepModelCard:
    """Return the card of the model that comes with Leadline."""
    return msgspec.json.decode(read_shipped(STEP_MODEL_CARD_FILE), type=StepModelCard)


def read_step_model(content: bytes, name: str) -> StepModel:
    """Return the model of a file's ``content``; errors call it ``name``.

    Raises:
        InvalidInput: it is no state of such a model.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as state:
            return load_step_model(dict(state))
    except (ValueError, KeyError, OSError, EOFError, BadZipFile) as error:
        raise InvalidInput(
            f"{name} holds no model of training steps ({error}): fit it again with benchmarks.dnn.fit_llm_training"
        ) from error


def write_step_model(folder: Path, model: StepModel, card: StepModelCard) -> None:
    """Write the model's state and its card into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / STEP_MODEL_FILE, **model.dump())  # type: ignore[arg-type]
    (folder / STEP_MODEL_CARD_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")


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
    if step.nodes > 1 and network_bytes_per_s(step.interconnect) is None:
        sentences.append(
            f"{step.gpus} GPUs are taken to be {step.nodes} nodes on a network of 100 Gb/s each, as none was named"
        )
    if not step.usual:
        sentences.append("the block sizes differ from those of the measured models: the interval is wider for it")
    return tuple(sentences)
