"""The time of transformers' training steps with intervals: the law, and how far off it was of steps it had not seen."""

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
from leadline.estimators.ports import State, floats, nest, strings, text_array, unnest
from leadline.estimators.step_time.transformer import (
    VALIDATED_LOG_DISTANCE,
    TransformerStepModel,
    fit_transformer_steps,
)
from leadline.estimators.step_time.transformer import load_transformer_steps as load_law
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
"""Scores from which a generation of GPUs has intervals of its own, within what was learned or beyond it."""
ALL, BEYOND = "", ", beyond"
"""The scores of all generations together, for those that have few or none; and what marks those of extrapolations."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """The law of all learned steps, and the scores of those that it was asked without having seen them.

    ``scores`` are by generation of GPUs (``gpu_generation``), those of all under ``ALL``. Steps whose sizes lay beyond
    what was learned have scores apart, under the name with ``BEYOND``: the law doubts itself otherwise there.
    """

    law: TransformerStepModel
    scores: Mapping[str, NormalizedScores]

    def predict(self, steps: Sequence[TransformerStep], level: float) -> tuple[Array, Array, Array]:
        """Return the seconds of n steps, and the ends of their central intervals of ``level`` (0 to 1), each (n,).

        Raises:
            InvalidInput: a device lacks a figure, or a size is not above zero.
        """
        told, believed = self.law.predict(steps), self.law.untested_spread(steps)
        doubt, group = _tested(told.spread, believed), _groups(steps, told.extrapolation)
        low, high = np.empty(len(steps)), np.empty(len(steps))
        for name in np.unique(group):
            own, scores = group == name, self._of(str(name))
            low[own], high[own] = scores.interval(told.point[own], doubt[own], level, believed[own])
        return told.point, low, high

    def _of(self, group: str) -> NormalizedScores:
        """Return the scores of a group, else of all that lie beyond as it does, else of all."""
        wider = ALL + BEYOND if group.endswith(BEYOND) else ALL
        return next(self.scores[one] for one in (group, wider, ALL) if one in self.scores)

    def dump(self) -> State:
        """Return the whole as arrays."""
        state: State = {"generations": text_array(list(self.scores)), **nest("law", self.law.dump())}
        for number, scores in enumerate(self.scores.values()):
            state |= nest(f"scores{number}", scores.dump())
        return state


def load_step_model(state: State) -> StepModel:
    """Return the model that was dumped."""
    scores = {}
    for number, name in enumerate(strings(state["generations"])):
        scores[name] = NormalizedScores.load(
            {key: floats(one) for key, one in unnest(f"scores{number}", state).items()}
        )
    return StepModel(load_law(unnest("law", state)), scores)


def fit_step_model(
    steps: Sequence[TransformerStep],
    elapsed_s: Array,
    configuration: Sequence[str],
    tries: Sequence[tuple[Mask, Mask]] = (),
) -> StepModel:
    """Return the model of n measured steps.

    Scores are those of cross-fitting, steps of one ``configuration`` together, and of ``tries``: extrapolations within
    the learned steps, each as masks (n,) of what is learned from and what is asked.

    Raises:
        InvalidInput: there are too few steps, a time is not above zero, or a device lacks a figure.
    """
    names, which = np.unique(np.asarray(configuration, np.str_), return_inverse=True)
    folds = np.random.default_rng(SEED).integers(0, FOLDS, len(names))[which]
    crossed = [(folds != fold, folds == fold) for fold in range(FOLDS) if 0 < (folds == fold).sum() < len(folds)]
    tried = [*crossed, *tries]
    parts = [_tried(steps, elapsed_s, *one) for one in tried]
    errors, doubts = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    group = np.concatenate([part[2] for part in parts])
    far = np.char.endswith(group, BEYOND)
    scores = {ALL: NormalizedScores.of(errors, doubts)}
    for name, own in [(ALL + BEYOND, far), *((str(one), group == one) for one in np.unique(group))]:
        if own.sum() >= ENOUGH:
            scores[name] = NormalizedScores.of(errors[own], doubts[own])
    return StepModel(fit_transformer_steps(steps, elapsed_s.tolist()), scores)


def _tried(steps: Sequence[TransformerStep], elapsed_s: Array, known: Mask, asked: Mask) -> tuple[Array, Array, Texts]:
    """Return the errors ln(measured ÷ predicted) of steps that are asked, how unsure the law was, and their groups."""
    law = fit_transformer_steps([steps[i] for i in np.flatnonzero(known).tolist()], elapsed_s[known].tolist())
    out = [steps[i] for i in np.flatnonzero(asked).tolist()]
    told = law.predict(out)
    errors = np.log(elapsed_s[asked] / told.point)
    return errors, _tested(told.spread, law.untested_spread(out)), _groups(out, told.extrapolation)


def _groups(steps: Sequence[TransformerStep], beyond: Array) -> Texts:
    names = [gpu_generation(one.device) + BEYOND * bool(far) for one, far in zip(steps, beyond > 0, strict=True)]
    return np.array(names, np.str_)


def _tested(spread: Array, believed: Array) -> Array:
    """Return the part of the spread that errors on other steps tell of."""
    return np.sqrt(np.maximum(spread**2 - believed**2, 0.0))


STEP_MODEL_FILE, STEP_MODEL_CARD_FILE = "llm_training.npz", "llm_training.json"
"""Names of the shipped files."""
LEVEL = 0.9


class StepModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the model: what it learned from, and how far off it was where it had not seen a step.

    ``errors`` maps a split to its figures in percent (``mape``, ``median``, ``p90``) and its rows ``n``; ``coverage``
    maps it to the percentage of measurements in the intervals of 90 %, by group, each with its rows.
    ``coefficients`` are the law's, by name (``transformer_step.BELIEFS`` says what they are).
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
    """The seconds of one optimizer step with their interval, where they go, and sentences on what they rest on.

    ``parts_s`` are the seconds of computing by kind, and of exchanging before any of it hides. ``beyond`` is how many
    times the model's sizes lie outside those learned from, at the most (1: within); GPUs and microbatches aside, whose
    laws are exact.
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
    """Return the time of a decoder's training step; ``job`` is the trace of one GPU with the whole model.

    Raises:
        InvalidInput: the model does not apply; the message says why.
    """
    step = decoder_step(job, workload, device, nodes=nodes, interconnect=interconnect)
    point, low, high = model.predict([step], level)
    parts = {name: float(seconds[0]) for name, seconds in model.law.parts([step]).items()}
    interval = Interval(float(point[0]), float(low[0]), float(high[0]), level)
    return DecoderStepPrediction(interval, parts, _sentences(model, step), _beyond(model, step))


@cache
def shipped_step_model() -> StepModel:
    """Return the model that comes with Leadline."""
    return read_step_model(read_shipped(STEP_MODEL_FILE), f"the shipped {STEP_MODEL_FILE}")


@cache
def shipped_step_model_card() -> StepModelCard:
    """Return the card of the model that comes with Leadline."""
    return msgspec.json.decode(read_shipped(STEP_MODEL_CARD_FILE), type=StepModelCard)


def read_step_model(content: bytes, name: str) -> StepModel:
    """Return the model that a file's ``content`` holds; ``name`` is what errors call it.

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


def _beyond(model: StepModel, step: TransformerStep) -> float:
    """Return how many times the sizes of the model lie outside what was learned from, at the most."""
    asked, law = log_magnitudes([step])[0], model.law
    outside = np.maximum(np.maximum(asked - law.most, law.least - asked), 0.0)
    sizes = [number for number, name in enumerate(MAGNITUDES) if name not in ("GPUs", "microbatches")]
    return math.exp(float(outside[sizes].max()))


def _sentences(model: StepModel, step: TransformerStep) -> tuple[str, ...]:
    """Return what the answer rests on, and what of the step was not learned from."""
    seen = ", ".join(model.law.generations)
    found = [f"the step's time is that of a law learned from measured training steps of MPT models ({seen})"]
    asked = log_magnitudes([step])[0]
    for name, at, least, most in zip(MAGNITUDES, asked, model.law.least, model.law.most, strict=True):
        end = most if at > most else least
        if at > most + 1e-9 or at < least - 1e-9:
            side = "largest" if at > most else "smallest"
            wider = ", and the interval is wider for it" if abs(at - end) > VALIDATED_LOG_DISTANCE else ""
            found.append(
                f"{name} ({math.exp(at):.4g}) lie {math.exp(abs(at - end)):.3g} times beyond the {side} learned from "
                f"({math.exp(end):.4g}){wider}"
            )
    if gpu_generation(step.device) not in model.law.generations:
        found.append(
            f"no step on {gpu_generation(step.device)} was learned from: {step.device.name} is told from its figures, "
            "and the interval is wider"
        )
    if step.nodes > 1 and network_bytes_per_s(step.interconnect) is None:
        found.append(
            f"{step.gpus} GPUs are taken to be {step.nodes} nodes on a network of 100 Gb/s each, as none was named"
        )
    if not step.usual:
        found.append("the blocks' sizes are not those of the models that were measured, so that the interval is wider")
    return tuple(found)
