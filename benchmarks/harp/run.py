"""Configurations that were never run, predicted by HARP as published, by plain boosting and by Leadline."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harp.campaign_curve import DRAWN, CurvePoint, growing_campaigns
from benchmarks.harp.commands import large_history_rows, resumed_campaign_rows
from benchmarks.harp.contenders import (
    BOOSTING,
    CONTENDERS,
    CUSTOM,
    HARP,
    LEADLINE,
    Answers,
    Progress,
    RunPredictions,
    SplitQuestion,
    answer_questions,
    pooled_predictions,
)
from benchmarks.histories import MeasuredHistory, read_histories
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_least, at_most
from leadline.core.errors import LeadlineError

FEW = 5
"""Full-scale configurations that are learned from, beside all scaled-down ones."""
SEEDS = 5
"""Draws of those few, each asked about all the others; the answers are pooled."""
WALLTIME, MEMORY = "elapsed_s", "host_memory_bytes"


@dataclass(frozen=True, slots=True)
class HarpComparison:
    """What every method answered for the full-scale runs of one history, after learning from ``learned``."""

    history: MeasuredHistory
    learned: str
    target: str
    answers: Mapping[str, RunPredictions]

    def figure(self, method: str, name: str) -> float:
        """Return one figure of merit; NaN where the method has none, or was not asked."""
        found = self.answers[method].figures()[name] if method in self.answers else None
        return float("nan") if found is None else found

    @property
    def n(self) -> int:
        """Return how many answers there are of each method."""
        return len(self.answers[LEADLINE].measured)


def run(*, quick: bool = False, data: Path | None = None, progress: Progress = lambda *_: None) -> BenchmarkResult:
    """Recompute every figure from the histories in ``data``, by default the shipped ones.

    A quick run draws once, asks of walltime alone, and leaves the learning curve out.
    """
    histories = read_histories(data)
    questions = [one for history in histories for one in _questions(history, quick=quick)]
    answers = answer_questions(histories, questions, progress)
    rows: list[BenchmarkRow] = []
    details: list[dict[str, object]] = []
    for history in histories:
        made = [one.answered(answers) for one in _comparisons(history, quick=quick)]
        some, none, *memory = made
        rows += _accuracy(some, 8.0) + _accuracy(none, 15.0) + _request(some, "walltime")
        rows += [row for one in memory for row in _request(one, "memory")]
        details += [detail for one in made for detail in _details(one)]
        if quick:
            continue
        curve = [one.point(answers, DRAWN) for one in growing_campaigns(history)]
        rows.append(_campaign(history, curve))
        details += [{"history": history.name, "curve": True, **point.document()} for point in curve]
    rows += _processes(quick=quick, data=data)
    machine = {"system": platform.platform(), "python": platform.python_version()}
    return BenchmarkResult(
        "harp", tuple(rows), datetime.now(UTC).isoformat(timespec="seconds"), machine, tuple(details)
    )


@dataclass(frozen=True, slots=True)
class TargetComparison:
    """What contenders learn from: all scaled-down runs of a history, and some configurations drawn at full scale."""

    history: MeasuredHistory
    full_scale: int
    target: str
    draws: int
    contenders: tuple[str, ...] = tuple(CONTENDERS)

    def questions(self, contender: str) -> tuple[SplitQuestion, ...]:
        """Return what a contender is asked, once for each draw."""
        return tuple(
            SplitQuestion(contender, self.history.name, self.target, self.full_scale, seed)
            for seed in range(self.draws)
        )

    def asked(self) -> tuple[str, ...]:
        """Return the contenders that can be asked: HARP's custom mode needs a parameter that counts repeats."""
        return tuple(one for one in self.contenders if self.history.work or one != CUSTOM)

    def answered(self, answers: Answers) -> HarpComparison:
        """Return what every method answered, all draws together."""
        learned = f"SD + {self.full_scale} FS" if self.full_scale else "SD only"
        said = {
            name: one
            for each in self.asked()
            for name, one in pooled_predictions(answers, self.questions(each)).items()
        }
        return HarpComparison(self.history, learned, self.target, said)


def _comparisons(history: MeasuredHistory, *, quick: bool) -> tuple[TargetComparison, ...]:
    draws = 1 if quick else SEEDS
    found = (TargetComparison(history, FEW, WALLTIME, draws), TargetComparison(history, 0, WALLTIME, 1))
    return found if quick else (*found, TargetComparison(history, FEW, MEMORY, draws, (LEADLINE, BOOSTING)))


def _questions(history: MeasuredHistory, *, quick: bool) -> Iterator[SplitQuestion]:
    for one in _comparisons(history, quick=quick):
        for method in one.asked():
            yield from one.questions(method)
    for each in () if quick else growing_campaigns(history):
        for contender in DRAWN:
            yield from each.questions(contender)


def _accuracy(one: HarpComparison, target: float) -> list[BenchmarkRow]:
    """Return the rows on points: the error, how much less it is than HARP's, and HARP's own metrics beside its."""
    name = f"{one.history.name}, {one.learned}"
    ours, theirs = one.figure(LEADLINE, "MAPE"), one.figure(HARP, "MAPE")
    best = min(one.figure(method, "MAPE") for method in one.answers if method.startswith(HARP))
    noise = one.history.noise
    floor = "" if noise is None else f"; repeats of one are {noise:.1f} % apart, which no model can foresee"
    how = f"full-scale runs of configurations not learned from; plain boosting {one.figure(BOOSTING, 'MAPE'):.0f} %{floor}"
    rows = [
        at_most(f"{name}: MAPE", ours, target, "%", baseline=theirs, n=one.n, how=f"{how}; baseline: HARP"),
        at_least(f"{name}: HARP's MAPE ÷ ours", theirs / ours, 5.0, "×", n=one.n,
                 how=f"HARP as released; of its policies and modes the best has {best:.0f} %, {best / ours:.1f} ×"),
    ]  # fmt: skip
    for figure, unit in (("MAE", "s"), ("UPP", "%"), ("OV_MAPE", "%")):
        what = f"baseline: HARP; plain boosting {one.figure(BOOSTING, figure):.3g} {unit}"
        rows.append(BenchmarkRow(f"{name}: {figure}", one.figure(LEADLINE, figure), unit, None, None,
                             one.figure(HARP, figure), one.n, what))  # fmt: skip
    covered = f"intervals of 90 %; plain boosting's quantiles {one.figure(BOOSTING, 'coverage'):.0f} %, HARP has none"
    return [*rows, BenchmarkRow(f"{name}: coverage", one.figure(LEADLINE, "coverage"), "%", n=one.n, how=covered)]


def _request(one: HarpComparison, what: str) -> list[BenchmarkRow]:
    """Return the rows on what would be asked for at a risk of 5 %."""
    name = f"{one.history.name}, {one.learned}: {what} at 5 % risk"
    short, over = one.figure(LEADLINE, "under-predicted at 5 % risk"), one.figure(LEADLINE, "over-request")
    plain = one.figure(BOOSTING, "under-predicted at 5 % risk"), one.figure(BOOSTING, "over-request")
    how = "share of the runs that need more than is asked for; baseline: boosting's 95 % quantile"
    return [
        at_most(f"{name}, too short", short, 8.0, "%", baseline=plain[0], n=one.n, how=how),
        at_least(f"{name}, too short at least", short, 2.0, "%", n=one.n, how="or the risk is not made use of"),
        at_most(f"{name}, median request ÷ need", over, 1.25, "×", baseline=plain[1], n=one.n,
                how="baseline: boosting's 95 % quantile"),
    ]  # fmt: skip


def _campaign(history: MeasuredHistory, curve: Sequence[CurvePoint]) -> BenchmarkRow:
    """Return how much cheaper than full scale the campaign was that saves most, of those accurate enough."""
    name = f"{history.name}: campaign, times cheaper than at full scale"
    good = [point for point in curve if point.mape[LEADLINE] <= 8.0]
    if not good:
        best = min(curve, key=lambda point: point.mape[LEADLINE])
        how = f"no campaign of the curve reached a MAPE of 8 %; {best.name} had {best.mape[LEADLINE]:.1f} %"
        return BenchmarkRow(name, best.cheaper, "×", target=15.0, met=False, how=how)
    best = max(good, key=lambda point: point.cheaper)
    how = (
        f"{best.name}, {best.cost_s:.0f} s, MAPE {best.mape[LEADLINE]:.1f} %; as many runs at the mean measured cost "
        f"of one at full scale take {best.cost_s * best.cheaper:.0f} s; HARP reports 5.5 to 7 ×"
    )
    return at_least(name, best.cheaper, 15.0, "×", n=best.runs, how=how)


def _processes(*, quick: bool, data: Path | None) -> list[BenchmarkRow]:
    """Return the rows of whole commands; where a command fails, the row says why."""
    rows: list[BenchmarkRow] = []
    for make in (large_history_rows, resumed_campaign_rows):
        try:
            rows += make(quick=quick, data=data)
        except LeadlineError as error:
            rows.append(
                BenchmarkRow(make.__name__.replace("_rows", " histories and campaigns"), None, "", how=str(error))
            )
    return rows


def _details(one: HarpComparison) -> list[dict[str, object]]:
    return [
        {"history": one.history.name, "learned": one.learned, "target": one.target, "method": name, "n": one.n,
         **answered.figures()}
        for name, answered in one.answers.items()
    ]  # fmt: skip
