"""``bench harp``: unmeasured configurations, predicted by HARP, by plain boosting and by Leadline.

HARP stands in every comparison twice: as released, and without its faults.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harp.campaign_curve import DRAWN, growing_campaigns
from benchmarks.harp.commands import large_history_rows, resumed_campaign_rows
from benchmarks.harp.contenders import (
    BOOSTING,
    CONTENDERS,
    CUSTOM,
    FIXED,
    FIXED_CUSTOM,
    HARP,
    LEADLINE,
    Answers,
    Progress,
    RunPredictions,
    SplitQuestion,
    answer_questions,
    pooled_predictions,
)
from benchmarks.harp.stopping import stopping_questions, stopping_rows
from benchmarks.histories import MeasuredHistory, read_histories
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_least, at_most
from leadline.core.errors import LeadlineError

FEW = 5
"""Full-scale configurations in the training data, in addition to all scaled-down ones."""
SEEDS = 5
"""Draws of those few; the predictions of the held-out runs are pooled."""
WALLTIME, MEMORY = "elapsed_s", "host_memory_bytes"


@dataclass(frozen=True, slots=True)
class HarpComparison:
    """The predictions of every method for the full-scale runs of one history, after training on ``learned``."""

    history: MeasuredHistory
    learned: str
    target: str
    answers: Mapping[str, RunPredictions]

    def metric(self, method: str, name: str) -> float:
        """Return one metric of a method; NaN where it has none."""
        metric = self.answers[method].metrics()[name] if method in self.answers else None
        return float("nan") if metric is None else metric

    @property
    def n(self) -> int:
        """Return the number of distinct held-out runs, which several draws may share."""
        return self.answers[LEADLINE].n

    def best_of(self, harp: str) -> float:
        """Return the least error (MAPE) of HARP's modes and policies, as released or without its faults."""
        return min(self.metric(method, "MAPE") for method in self.answers if method.startswith(harp))


def run(*, quick: bool = False, data: Path | None = None, progress: Progress = lambda *_: None) -> BenchmarkResult:
    """Recompute every metric from the histories in ``data``, by default the shipped ones.

    A quick run draws once, predicts walltime alone, and leaves the learning curve out.
    """
    histories = read_histories(data)
    questions = [question for history in histories for question in _questions(history, quick=quick)]
    answers = answer_questions(histories, questions, progress)
    rows: list[BenchmarkRow] = []
    details: list[dict[str, object]] = []
    for history in histories:
        comparisons = [setting.compare(answers) for setting in _settings(history, quick=quick)]
        few, none, *memory = comparisons
        rows += _accuracy(few, 8.0) + _accuracy(none, 15.0) + _request(few, "walltime")
        rows += [row for comparison in memory for row in _request(comparison, "memory")]
        details += [detail for comparison in comparisons for detail in _details(comparison)]
        if quick:
            continue
        curve = [campaign.point(answers, DRAWN) for campaign in growing_campaigns(history)]
        rows += stopping_rows(history, answers)
        details += [{"history": history.name, "curve": True, **point.document()} for point in curve]
    rows += _commands(quick=quick, data=data)
    return BenchmarkResult("harp", tuple(rows), details=tuple(details))


@dataclass(frozen=True, slots=True)
class TargetComparison:
    """A training set: all scaled-down runs of a history, and some configurations drawn at full scale."""

    history: MeasuredHistory
    full_scale: int
    target: str
    draws: int
    contenders: tuple[str, ...] = tuple(CONTENDERS)

    def questions(self, contender: str) -> tuple[SplitQuestion, ...]:
        """Return a contender's questions, one for each draw."""
        return tuple(
            SplitQuestion(contender, self.history.name, self.target, self.full_scale, seed)
            for seed in range(self.draws)
        )

    def usable_contenders(self) -> tuple[str, ...]:
        """Return the contenders that fit the history: HARP's custom mode needs a parameter that counts repeats."""
        return tuple(
            contender for contender in self.contenders if self.history.work or contender not in (CUSTOM, FIXED_CUSTOM)
        )

    def compare(self, answers: Answers) -> HarpComparison:
        """Return the predictions of every method, all draws pooled."""
        learned = f"SD + {self.full_scale} FS" if self.full_scale else "SD only"
        predictions: dict[str, RunPredictions] = {}
        for contender in self.usable_contenders():
            predictions |= pooled_predictions(answers, self.questions(contender))
        return HarpComparison(self.history, learned, self.target, predictions)


def _settings(history: MeasuredHistory, *, quick: bool) -> tuple[TargetComparison, ...]:
    draws = 1 if quick else SEEDS
    settings = (TargetComparison(history, FEW, WALLTIME, draws), TargetComparison(history, 0, WALLTIME, 1))
    return settings if quick else (*settings, TargetComparison(history, FEW, MEMORY, draws, (LEADLINE, BOOSTING)))


def _questions(history: MeasuredHistory, *, quick: bool) -> Iterator[SplitQuestion]:
    for setting in _settings(history, quick=quick):
        for contender in setting.usable_contenders():
            yield from setting.questions(contender)
    for campaign in () if quick else growing_campaigns(history):
        for contender in DRAWN:
            yield from campaign.questions(contender)
    yield from () if quick else stopping_questions(history)


def _accuracy(comparison: HarpComparison, target: float) -> list[BenchmarkRow]:
    """Return the rows on points: the error, both HARPs' errors divided by it, HARP's own metrics, and coverage."""
    metric, n = comparison.metric, comparison.n
    name = f"{comparison.history.name}, {comparison.learned}"
    error, fixed_error = metric(LEADLINE, "MAPE"), metric(FIXED, "MAPE")
    noise = comparison.history.noise
    floor = "" if noise is None else f"; repeated runs differ by {noise:.1f} %, a floor for every model"
    how = (
        f"{len(comparison.answers[LEADLINE].measured)} predictions of {n} held-out runs at full scale; "
        f"plain boosting {metric(BOOSTING, 'MAPE'):.0f} %, {HARP} {metric(HARP, 'MAPE'):.0f} %{floor}"
    )
    rows = [at_most(f"{name}: MAPE", error, target, "%", baseline=fixed_error, n=n, how=f"{how}; baseline: {FIXED}")]
    for harp in (FIXED, HARP):
        best = comparison.best_of(harp)
        rows.append(
            at_least(f"{name}: MAPE of {harp} ÷ ours", metric(harp, "MAPE") / error, 5.0, "×", n=n,
                     how=f"the best of its policies and modes has {best:.0f} %, {best / error:.1f} ×")
        )  # fmt: skip
    for key, unit in (("MAE", "s"), ("UPP", "%"), ("OV_MAPE", "%")):
        baseline = (
            f"baseline: {FIXED}; as released {metric(HARP, key):.3g} {unit}; "
            f"plain boosting {metric(BOOSTING, key):.3g} {unit}"
        )
        rows.append(BenchmarkRow(f"{name}: {key}", metric(LEADLINE, key), unit, baseline=metric(FIXED, key), n=n,
                                 how=baseline))  # fmt: skip
    covered = f"90 % intervals; plain boosting's quantiles {metric(BOOSTING, 'coverage'):.0f} %, HARP has none"
    return [*rows, BenchmarkRow(f"{name}: coverage", metric(LEADLINE, "coverage"), "%", n=n, how=covered)]


def _request(comparison: HarpComparison, resource: str) -> list[BenchmarkRow]:
    """Return the rows on requests at a risk of 5 %."""
    name, n = f"{comparison.history.name}, {comparison.learned}: {resource} at 5 % risk", comparison.n
    short, over = (comparison.metric(LEADLINE, key) for key in ("under-predicted at 5 % risk", "over-request"))
    plain_short, plain_over = (
        comparison.metric(BOOSTING, key) for key in ("under-predicted at 5 % risk", "over-request")
    )
    how = "share of the runs that need more than the request; baseline: boosting's 95 % quantile"
    return [
        at_most(f"{name}, too short", short, 8.0, "%", baseline=plain_short, n=n, how=how),
        at_least(f"{name}, too short at least", short, 2.0, "%", n=n, how="less means that the risk is not used"),
        at_most(f"{name}, median request ÷ need", over, 1.25, "×", baseline=plain_over, n=n,
                how="baseline: boosting's 95 % quantile"),
    ]  # fmt: skip


def _commands(*, quick: bool, data: Path | None) -> list[BenchmarkRow]:
    """Return the rows of whole commands; where a command fails, the row gives the reason."""
    rows: list[BenchmarkRow] = []
    for make in (large_history_rows, resumed_campaign_rows):
        try:
            rows += make(quick=quick, data=data)
        except LeadlineError as error:
            rows.append(
                BenchmarkRow(make.__name__.replace("_rows", " histories and campaigns"), None, "", how=str(error))
            )
    return rows


def _details(comparison: HarpComparison) -> list[dict[str, object]]:
    return [
        {"history": comparison.history.name, "learned": comparison.learned, "target": comparison.target,
         "method": name, "n": comparison.n, **predictions.metrics()}
        for name, predictions in comparison.answers.items()
    ]  # fmt: skip
