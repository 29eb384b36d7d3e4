"""Whole runs to a target quality: later rounds of MLPerf Training from earlier ones (MLCommons, Apache-2.0)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.baselines import boosted_rows, nearest_row
from benchmarks.dnn.run_similarity import WholeRun
from benchmarks.dnn.splits import LEVEL, Array, SplitResult, joined_split
from benchmarks.dnn.whole_run_model import fit_run_times
from benchmarks.normalized_errors import normalize_errors
from benchmarks.tables import Columns, read_table
from benchmarks.tables import select_rows as rows_of
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import UnknownName
from leadline.core.hardware import Device
from leadline.uncertainty.normalized_scores import NormalizedScores

Mask = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.str_]

TABLE = "whole runs"
ROUNDS = ["0.5", "0.6", "0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0", "4.1"]
ASKED = ROUNDS[4:]
"""Tested rounds, each from those before; intervals need three earlier rounds."""
FIRST_TRIED = 2
PARTS = 5
ENOUGH = 19
"""Intervals come from the latest rounds with this many errors of a kind: benchmarks mature, so older rounds had larger
errors."""
REDEFINED = {"resnet": "0.6", "ssd": "0.6", "gnmt": "0.6", "maskrcnn": "0.6"}
"""Benchmarks whose target quality rose in a round; earlier runs are another workload."""
NEW_MODEL = {"ssd": "2.0"}
"""Benchmarks with a new model and data set since a round (SSD-ResNet34 on COCO, then RetinaNet on OpenImages)."""
DEVICES = {
    "V100": "V100", "A100": "A100", "A30": "A30", "H100": "H100", "H200": "H200", "L40S": "L40S", "B200": "B200",
    "other:NVIDIA A40": "A40", "other:NVIDIA L4": "L4", "other:NVIDIA RTX A5000": "RTX A5000", "RTX4090": "RTX 4090",
    "Gaudi2": "Gaudi 2", "TPUv4": "TPU v4", "TPUv5p": "TPU v5p", "A10": "A10",
}  # fmt: skip
FORMS = {
    ("A100", "PCIe"): "A100 PCIe 80GB", ("A100", "SXM"): "A100 SXM4 80GB", ("H100", "PCIe"): "H100 PCIe 80GB",
    ("H100", "NVL"): "H100 NVL", ("H100", "SXM"): "H100 SXM5 80GB",
}  # fmt: skip
"""Accelerator and form factor → the device of the catalog, where the form matters."""
NEAREST = np.array([1e-6, 1e-3, 0.5, 0.3, 2.0, 2.0, 1e3, 1e3, 4.0, 1e4])
"""Scale of each plain feature in the search for the nearest run."""
_SOFTWARE = re.compile(r"_?ngc[\d.]+|_?(pytorch|mxnet|tensorflow|tf|merlin|hugectr|dgl|nemo|paddlepaddle).*")


@dataclass(frozen=True, slots=True)
class MlperfRuns:
    """The n runs, their seconds, the position of their round in ``ROUNDS``, and plain features (n, columns)."""

    runs: Sequence[WholeRun]
    elapsed_s: Array
    round: npt.NDArray[np.int64]
    features: Array

    def at(self, chosen: Mask) -> "MlperfRuns":
        """Return the rows where ``chosen`` is true."""
        kept = [self.runs[int(i)] for i in np.flatnonzero(chosen)]
        return MlperfRuns(kept, self.elapsed_s[chosen], self.round[chosen], self.features[chosen])

    @property
    def workload(self) -> Texts:
        """Return the workload of each run."""
        return np.array([run.workload for run in self.runs], np.str_)


@dataclass(frozen=True, slots=True)
class MlperfRound:
    """The predictions of one round from those before: runs, predictions of all methods, spread, kind of question."""

    runs: MlperfRuns
    answers: dict[str, Array]
    spread: Array
    group: Texts


def splits(data: Path, *, quick: bool) -> list[SplitResult]:
    """Return the splits of the table; ``quick`` tests the last two rounds only."""
    table = _runs(read_table(data, "mlperf_training"))
    first = len(ROUNDS) - 2 if quick else ROUNDS.index(ASKED[0])
    rounds = [_round(table, number) for number in range(first - 2 if quick else FIRST_TRIED, len(ROUNDS))]
    parts = []
    for number in range(2, len(rounds)):
        name = f"round {ROUNDS[rounds[number].runs.round[0]]}"
        parts.append(_split(name, rounds[number], _latest(rounds[:number])))
    later = joined_split(
        TABLE, "later rounds from earlier", parts, median=8.0,
        how="each round from all before it; intervals from the latest rounds tested before",
    )  # fmt: skip
    return [later, _random(table, 1 if quick else PARTS)]


def _runs(columns: Columns) -> MlperfRuns:
    """Return the runs of the closed division on accelerators; the table has no CPU sockets."""
    closed = np.array([division.lower() != "open" for division in columns["sys_division"]])
    columns = rows_of(columns, closed & (columns["n_accel"] > 0))
    catalog = TomlCatalog()
    runs = []
    for i, name in enumerate(columns["system"]):
        round_ = str(columns["round"][i]).removeprefix("train_v")
        form, accelerator = _form(str(name)), str(columns["accel"][i])
        device = _device(catalog, accelerator, form)
        batch, nodes = float(columns["global_batch_size"][i]), float(columns["sys_nodes"][i])
        runs.append(
            WholeRun(
                workload=_workload(str(columns["benchmark"][i]), round_), device=accelerator,
                devices=int(columns["n_accel"][i]), nodes=int(nodes) if nodes >= 1 else 1,
                batch=batch if batch > 0 else None, when=float(ROUNDS.index(round_)),
                form=form, system=_system(str(name)),
                site=str(columns["submitter_dir"][i]).lower(), host=str(columns["host_processor_model_name"][i]),
                peak_flops_per_s=_peak(device), memory_bytes_per_s=device.memory_bytes_per_s if device else None,
            )
        )  # fmt: skip
    numbers = [ROUNDS.index(str(name).removeprefix("train_v")) for name in columns["round"]]
    return MlperfRuns(runs, columns["run_time_olympic_s"].astype(float), np.array(numbers), _features(runs))


def _workload(benchmark: str, round_: str) -> str:
    name = "maskrcnn" if benchmark == "mask" else benchmark
    number = ROUNDS.index(round_)
    if number < ROUNDS.index(REDEFINED.get(name, ROUNDS[0])):
        return f"{name}, first target"
    if name in NEW_MODEL and number >= ROUNDS.index(NEW_MODEL[name]):
        return f"{name}, new model"
    return name


def _form(system: str) -> str:
    folded = system.lower()
    if "pci" in folded:
        return "PCIe"
    if "nvl" in folded:
        return "NVL"
    return "SXM" if any(word in folded for word in ("sxm", "dgx", "nd96")) else ""


def _system(name: str) -> str:
    """Return a system's name without its submitter's software suffix."""
    return re.sub(r"[-_ .]", "", _SOFTWARE.sub("", name.lower()))


def _device(catalog: TomlCatalog, accelerator: str, form: str) -> Device | None:
    name = FORMS.get((accelerator, form), DEVICES.get(accelerator, accelerator))
    try:
        return catalog.device(name)
    except UnknownName:  # not in the catalog: its runs are the only data
        return None


def _peak(device: Device | None) -> float | None:
    if device is None:
        return None
    return device.peak_flops_per_s.get("bfloat16") or device.peak_flops_per_s.get("float16")


def _features(runs: Sequence[WholeRun]) -> Array:
    """Return plain features: codes of texts, logarithms of sizes."""
    codes: dict[str, int] = {}

    def code(text: str) -> int:
        return codes.setdefault(text, len(codes))

    return np.array(
        [
            [code(run.workload), code(run.device), code(run.form), np.log(run.devices), np.log(run.nodes),
             np.log(run.batch or 1), np.log(run.peak_flops_per_s or 2e14), np.log(run.memory_bytes_per_s or 1e12),
             run.when, code(run.system)]
            for run in runs
        ], float,
    )  # fmt: skip


def _round(table: MlperfRuns, number: int) -> MlperfRound:
    learned = table.at(table.round < number)
    return _answered(learned, table.at((table.round == number) & np.isin(table.workload, learned.workload)))


def _answered(learned: MlperfRuns, tested: MlperfRuns) -> MlperfRound:
    """Return the predictions of all methods, for known workloads."""
    predicted = fit_run_times(learned.runs, list(learned.elapsed_s)).predict(tested.runs)
    answers = {
        "Leadline": predicted.point,
        "nearest neighbour": _nearest(learned, tested),
        "boosting": boosted_rows(learned.features, learned.elapsed_s, tested.features),
        "constant work per accelerator": _constant_work(learned, tested),
    }
    return MlperfRound(tested, answers, predicted.spread, _new(learned, tested))


def _new(learned: MlperfRuns, tested: MlperfRuns) -> Texts:
    """Return the part of each run that is new for its workload: accelerator, count or neither."""
    counts = {(run.workload, run.device, run.devices) for run in learned.runs}
    devices = {(run.workload, run.device) for run in learned.runs}
    return np.array(
        [
            "same accelerator and count"
            if (run.workload, run.device, run.devices) in counts
            else "other count"
            if (run.workload, run.device) in devices
            else "other accelerator"
            for run in tested.runs
        ]
    )


def _latest(rounds: Sequence[MlperfRound]) -> Mapping[str, NormalizedScores]:
    """Return the scores of the latest rounds by kind of question, ``ENOUGH`` of each kind if there are."""
    parts: dict[str, list[tuple[Array, Array]]] = {}
    for round_ in reversed(rounds):
        for name in np.unique(round_.group):
            errors = parts.setdefault(str(name), [])
            if sum(len(part) for part, _ in errors) < ENOUGH:
                errors.append(_errors(round_, round_.group == name))
    return {name: _scores(errors) for name, errors in parts.items()}


def _errors(round_: MlperfRound, chosen: Mask) -> tuple[Array, Array]:
    """Return the errors ln(measured ÷ predicted) of the chosen runs, and the spreads of their predictions."""
    return np.log(round_.runs.elapsed_s / round_.answers["Leadline"])[chosen], round_.spread[chosen]


def _scores(parts: Sequence[tuple[Array, Array]]) -> NormalizedScores:
    errors, spreads = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return normalize_errors(errors, spreads)


def _split(split: str, round_: MlperfRound, scores: Mapping[str, NormalizedScores]) -> SplitResult:
    """Return the predictions of a round with intervals; a kind without errors has the widest of the others."""
    low, high = np.empty(len(round_.group)), np.empty(len(round_.group))
    widest = max(scores.values(), key=lambda score: score.factor(LEVEL))
    for name in np.unique(round_.group):
        mask = round_.group == name
        score = scores.get(str(name), widest)
        low[mask], high[mask] = score.interval(round_.answers["Leadline"][mask], round_.spread[mask], LEVEL)
    return SplitResult(TABLE, split, round_.runs.elapsed_s, round_.answers, low, high, round_.group)


def _random(table: MlperfRuns, folds: int) -> SplitResult:
    """Hold out the first ``folds`` of five parts of the configurations in turn; errors from a second held-out part."""
    unique, which = np.unique(_configurations(table.runs), return_inverse=True)
    part = np.random.default_rng(0).integers(0, PARTS, len(unique))[which]
    pairs = [pair for pair in combinations(range(PARTS), 2) if pair[0] < folds]
    tried = {pair: _without(table, part, pair) for pair in pairs}
    results = []
    for fold in range(folds):
        errors: dict[str, list[tuple[Array, Array]]] = {}
        for pair in pairs:
            if fold not in pair:
                continue
            inner = tried[pair][pair[pair[0] == fold]]
            for name in np.unique(inner.group):
                errors.setdefault(str(name), []).append(_errors(inner, inner.group == name))
        answered = _without(table, part, (fold,))[fold]
        split = _split(f"part {fold}", answered, {name: _scores(parts) for name, parts in errors.items()})
        results.append(replace(split, unit=np.array(_configurations(answered.runs.runs))))
    return joined_split(
        TABLE, "random by configuration", results, how="four fifths of workload × system × count, in turn"
    )


def _without(table: MlperfRuns, part: npt.NDArray[np.int64], left_out: tuple[int, ...]) -> dict[int, MlperfRound]:
    """Return the predictions of parts that are held out together, without new workloads."""
    learned, rounds = table.at(~np.isin(part, left_out)), {}
    for number in left_out:
        runs = table.at(part == number)
        rounds[number] = _answered(learned, runs.at(np.isin(runs.workload, learned.workload)))
    return rounds


def _configurations(runs: Sequence[WholeRun]) -> list[str]:
    return [f"{run.workload} {run.system} {run.devices}" for run in runs]


def _nearest(learned: MlperfRuns, tested: MlperfRuns) -> Array:
    """Return the time of the nearest run: of the same workload, then accelerator, count, form and batch."""
    return nearest_row(learned.features, learned.elapsed_s, tested.features, NEAREST)


def _constant_work(learned: MlperfRuns, tested: MlperfRuns) -> Array:
    """Return the median of devices × seconds of the same workload on the same device, else of the workload."""
    work: dict[tuple[str, ...], list[float]] = {}
    for run, seconds in zip(learned.runs, learned.elapsed_s, strict=True):
        for key in ((run.workload, run.device), (run.workload,)):
            work.setdefault(key, []).append(seconds * run.devices)
    products = [work.get((run.workload, run.device)) or work[run.workload,] for run in tested.runs]
    return np.array([np.median(values) for values in products]) / [run.devices for run in tested.runs]
