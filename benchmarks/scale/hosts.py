"""Training steps that wait for their host, before and after the model was adapted to some steps of that host."""

import csv
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.results import BenchmarkRow, at_most, within
from benchmarks.scale.own_steps import DEVICE, Measured, measured_steps, options_of, write_configuration
from benchmarks.scale.rows import PER_NODE, SWEEP, ScaleRow
from leadline.app.composition import toolbox
from leadline.app.estimate.adapt import adapt
from leadline.app.estimate.estimate import Toolbox, estimate
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.graph import TracedJob
from leadline.core.workload import ModelKind, Workload
from leadline.estimators.parallelism.training_step import NARROW
from leadline.training.decoder_steps import LEVEL, DecoderStepModel
from leadline.training.step_adaptation import adapt_step_model, with_coefficients

COUNTS, SEEDS, LIMIT = (3, 5, 10), 10, 12.0
"""Numbers of steps that a model is adapted to, draws of each, and the largest median error in percent."""
COLUMNS = (
    "batch", "seq", "seq_max", "precision", "attention", "optimizer", "accumulate", "checkpointing", "peft",
    "lora_targets",
)  # fmt: skip

Outcome = tuple[float, Interval]
"""Measured and predicted seconds of a step."""


def own_host_rows() -> list[BenchmarkRow]:
    """Return errors on our own steps, adapted to steps of other model families in the same host."""
    steps = list(measured_steps())
    families = np.array([str(step["configuration"]["model"]).split("-")[0].rstrip("0123456789.") for step in steps])
    names, outcomes, before = np.unique(families), dict[int, list[Outcome]](), list[Outcome]()
    with tempfile.TemporaryDirectory() as text, _data_folder(Path(text)):
        folder, tools = Path(text), _remembering(toolbox())
        for step in steps:
            predicted = _predict(step, folder, tools)
            before += [(step["step_ms"] / 1e3, predicted)] if predicted else []
        for count in COUNTS:
            outcomes[count] = []
            for seed in range(SEEDS):
                draw = np.random.default_rng(seed)
                known = np.isin(families, draw.permutation(names)[: len(names) // 2])
                chosen = draw.permutation(np.flatnonzero(known))[:count].tolist()
                _adapt([steps[place] for place in chosen], folder, tools)
                for place in np.flatnonzero(~known).tolist():
                    predicted = _predict(steps[place], folder, tools)
                    outcomes[count] += [(steps[place]["step_ms"] / 1e3, predicted)] if predicted else []
    how = f"steps of the other half of the families, {SEEDS} draws, one H200; part of no fit"
    return [
        row
        for count, pairs in outcomes.items()
        for row in _error_rows(
            f"our own steps, adapted to {count} others", pairs, _median_error(before), len(steps), how
        )
    ]


def sweep_host_rows(rows: Sequence[ScaleRow], model: DecoderStepModel) -> list[BenchmarkRow]:
    """Return errors on the sweep's runs on one node, by a ``model`` fitted without them and adapted to some of them."""
    runs = [row for row in rows if row.source == SWEEP and row.step.gpus <= PER_NODE and row.step.dtype not in NARROW]
    steps, step_s = [run.step for run in runs], np.array([run.elapsed_s for run in runs])
    before = 100 * float(np.median(np.abs(model.seconds(steps) / step_s - 1)))
    answers = []
    for count in COUNTS:
        pairs: list[Outcome] = []
        for seed in range(SEEDS):
            order = np.random.default_rng(seed).permutation(len(runs)).tolist()
            known, asked = order[:count], order[count:]
            adapted = with_coefficients(model, adapt_step_model(model, [steps[i] for i in known], step_s[known]))
            columns = (step_s[asked], *adapted.predict([steps[i] for i in asked]))
            pairs += [
                (run_s, Interval(point, low, high, LEVEL))
                for run_s, point, low, high in zip(*(column.tolist() for column in columns), strict=True)
            ]
        how = f"the other runs of the same host, {SEEDS} draws; fitted without this source"
        answers += _error_rows(f"{SWEEP} on one node, adapted to {count} others", pairs, before, len(runs), how)
    return answers


def _median_error(pairs: Sequence[Outcome]) -> float:
    return float(np.median([100 * abs(interval.point / measured - 1) for measured, interval in pairs]))


def _error_rows(name: str, pairs: Sequence[Outcome], before: float, count: int, how: str) -> list[BenchmarkRow]:
    errors = [100 * abs(interval.point / measured - 1) for measured, interval in pairs]
    inside = [interval.low <= measured <= interval.high for measured, interval in pairs]
    width = float(np.median([interval.high / interval.low for _, interval in pairs]))
    return [
        at_most(f"{name}: median error", _median_error(pairs), LIMIT, "%", n=count, baseline=before,
                how=f"{how}; MAPE {np.mean(errors):.1f} %; baseline: without adaptation"),
        within(f"{name}: 90 % intervals that hold", 100 * float(np.mean(inside)), (85.0, 100.0), "%", n=count,
               how=f"median width {width:.2f}"),
    ]  # fmt: skip


def _adapt(steps: Sequence[Measured], folder: Path, tools: Toolbox) -> None:
    """Adapt to steps by the verb; steps that do not improve the estimates leave the shipped model."""
    table = folder / "steps.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["workload", *COLUMNS, "step_s"])
        for step in steps:
            options = options_of(step["configuration"])
            cells = [getattr(options, name) for name in COLUMNS]
            path = write_configuration(step["configuration"], folder)
            writer.writerow(
                [path, *("" if cell is None else str(cell).lower() for cell in cells), step["step_ms"] / 1e3]
            )
    for kept in (folder / "adapted").glob("*.npz"):
        kept.unlink()
    try:
        adapt(table, tools, device=DEVICE)
    except InvalidInput as error:
        if "steps, but at least" not in str(error) and "does not improve" not in str(error):
            raise


def _predict(step: Mapping[str, object], folder: Path, tools: Toolbox) -> Interval | None:
    asked: Measured = step["configuration"]  # type: ignore[assignment]
    workload = read_workload([str(write_configuration(asked, folder))], options_of(asked))
    return estimate(workload, tools, on=[DEVICE]).estimates[0].step_s


def _remembering(tools: Toolbox) -> Toolbox:
    """Return the adapters with traces that are made once."""
    traced: dict[str, TracedJob] = {}
    trace = tools.sources[ModelKind.HF_CONFIG]

    def remember(workload: Workload, *, device_type: str) -> TracedJob:
        key = f"{workload} {device_type}"
        if key not in traced:
            traced[key] = trace(workload, device_type=device_type)
        return traced[key]

    return replace(tools, sources={**tools.sources, ModelKind.HF_CONFIG: remember})


@contextmanager
def _data_folder(folder: Path) -> Iterator[None]:
    """Keep adapted estimators in a folder of the benchmark."""
    before = os.environ.get("LEADLINE_DATA_DIR")
    os.environ["LEADLINE_DATA_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LEADLINE_DATA_DIR"]
        else:
            os.environ["LEADLINE_DATA_DIR"] = before
