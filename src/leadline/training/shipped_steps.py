"""The shipped model of transformers' training steps: what it answers of a traced decoder, and its card."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device
from leadline.core.workload import Workload
from leadline.estimators.communication import network_bytes_per_s
from leadline.estimators.transformer_graph import decoder_step
from leadline.estimators.transformer_step import TRIED
from leadline.estimators.transformer_terms import MAGNITUDES, TransformerStep, generation_of, magnitudes
from leadline.training.shipped_files import content_of
from leadline.training.step_model import StepModel, load

STATE, CARD = "llm_training.npz", "llm_training.json"
"""Names of the shipped files."""
LEVEL = 0.9


class StepCard(msgspec.Struct, frozen=True, kw_only=True):
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
class StepAnswer:
    """The seconds of one optimizer step with their interval, where they go, and sentences on what they rest on.

    ``parts_s`` are the seconds of computing by kind, and of exchanging before any of it hides. ``beyond`` is how many
    times the model's sizes lie outside those learned from, at the most (1: within); GPUs and microbatches aside, whose
    laws are exact.
    """

    step_s: Interval
    parts_s: Mapping[str, float]
    sentences: tuple[str, ...]
    beyond: float = 1.0


def answer(
    model: StepModel,
    job: TracedJob,
    workload: Workload,
    device: Device,
    *,
    nodes: int = 1,
    interconnect: str | None = None,
    level: float = LEVEL,
) -> StepAnswer:
    """Return the time of a decoder's training step; ``job`` is the trace of one GPU with the whole model.

    Raises:
        InvalidInput: the model does not apply; the message says why.
    """
    step = decoder_step(job, workload, device, nodes=nodes, interconnect=interconnect)
    point, low, high = model.predict([step], level)
    parts = {name: float(seconds[0]) for name, seconds in model.law.parts([step]).items()}
    interval = Interval(float(point[0]), float(low[0]), float(high[0]), level)
    return StepAnswer(interval, parts, _sentences(model, step), _beyond(model, step))


@cache
def shipped_steps() -> StepModel:
    """Return the model that comes with Leadline."""
    return steps_of(content_of(STATE), f"the shipped {STATE}")


@cache
def shipped_card() -> StepCard:
    """Return the card of the model that comes with Leadline."""
    return msgspec.json.decode(content_of(CARD), type=StepCard)


def steps_of(content: bytes, name: str) -> StepModel:
    """Return the model that a file's ``content`` holds; ``name`` is what errors call it.

    Raises:
        InvalidInput: it is no state of such a model.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as state:
            return load(dict(state))
    except (ValueError, KeyError, OSError, EOFError, BadZipFile) as error:
        raise InvalidInput(
            f"{name} holds no model of training steps ({error}): fit it again with benchmarks.dnn.fit_llm_training"
        ) from error


def write(folder: Path, model: StepModel, card: StepCard) -> None:
    """Write the model's state and its card into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / STATE, **model.dump())  # type: ignore[arg-type]
    (folder / CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")


def _beyond(model: StepModel, step: TransformerStep) -> float:
    """Return how many times the sizes of the model lie outside what was learned from, at the most."""
    asked, law = magnitudes([step])[0], model.law
    outside = np.maximum(np.maximum(asked - law.most, law.least - asked), 0.0)
    sizes = [number for number, name in enumerate(MAGNITUDES) if name not in ("GPUs", "microbatches")]
    return math.exp(float(outside[sizes].max()))


def _sentences(model: StepModel, step: TransformerStep) -> tuple[str, ...]:
    """Return what the answer rests on, and what of the step was not learned from."""
    seen = ", ".join(model.law.generations)
    found = [f"the step's time is that of a law learned from measured training steps of MPT models ({seen})"]
    asked = magnitudes([step])[0]
    for name, at, least, most in zip(MAGNITUDES, asked, model.law.least, model.law.most, strict=True):
        end = most if at > most else least
        if at > most + 1e-9 or at < least - 1e-9:
            side = "largest" if at > most else "smallest"
            wider = ", and the interval is wider for it" if abs(at - end) > TRIED else ""
            found.append(
                f"{name} ({math.exp(at):.4g}) lie {math.exp(abs(at - end)):.3g} times beyond the {side} learned from "
                f"({math.exp(end):.4g}){wider}"
            )
    if generation_of(step.device) not in model.law.generations:
        found.append(
            f"no step on {generation_of(step.device)} was learned from: {step.device.name} is told from its figures, "
            "and the interval is wider"
        )
    if step.nodes > 1 and network_bytes_per_s(step.interconnect) is None:
        found.append(
            f"{step.gpus} GPUs are taken to be {step.nodes} nodes on a network of 100 Gb/s each, as none was named"
        )
    if not step.usual:
        found.append("the blocks' sizes are not those of the models that were measured, so that the interval is wider")
    return tuple(found)
