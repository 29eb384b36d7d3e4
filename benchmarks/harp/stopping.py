"""The saving of a campaign that ends by a rule fixed beforehand, beside full-scale runs alone under the same rule.

A campaign grows in fixed steps. After each, the method trains and measures its own error on its full-scale training
runs: Leadline by cross-validation, HARP on its validation runs. The campaign ends at the first step that promises
``PROMISE``. The held-out runs are scored once, after that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harp.campaign_curve import DRAWS, GrowingCampaign, growing_campaigns
from benchmarks.harp.contenders import FIXED, LEADLINE, Answers, RunPredictions, SplitQuestion
from benchmarks.histories import MeasuredHistory, cost_s
from benchmarks.results import BenchmarkRow, at_least, at_most
from leadline.uncertainty.metrics import mape

PROMISE = 8.0
"""Error (MAPE, percent) at full scale that ends a campaign, as promised by the method itself."""
MIXED = ((0.15, 2), (0.4, 3), (1.0, 3), (1.0, 5), (1.0, 8))
FULL_ONLY = ((0.0, 8), (0.0, 10), (0.0, 12))
"""Steps: share of the scaled-down configurations, number of full-scale ones. No model can be fitted on fewer than eight
runs, as each fold of the validation leaves some out."""
SAVED = 15.0
"""Target for the saving."""


@dataclass(frozen=True, slots=True)
class StoppedCampaign:
    """One draw of a campaign at its last step.

    Attributes:
        stopped: Its method promised ``PROMISE``; otherwise it used up its steps.
        cost_s: Time of its runs in seconds.
        as_many: Cost of as many runs at full scale, divided by that cost.
    """

    stopped: bool
    runs: int
    cost_s: float
    as_many: float
    answer: RunPredictions


def stopping_questions(history: MeasuredHistory) -> tuple[SplitQuestion, ...]:
    """Return the questions that the rule needs answered."""
    mixed = growing_campaigns(history, MIXED)
    full_only = growing_campaigns(history, FULL_ONLY)
    asked = ((LEADLINE, mixed), (LEADLINE, full_only), (FIXED, mixed))
    return tuple(question for name, steps in asked for step in steps for question in step.questions(name))


def stopping_rows(history: MeasuredHistory, answers: Answers) -> list[BenchmarkRow]:
    """Return the saving, the errors of the stopped campaigns on held-out runs, and the cost of as many runs."""
    mixed, full_only = growing_campaigns(history, MIXED), growing_campaigns(history, FULL_ONLY)
    ours, alone, harp = (
        _stop(history, steps, name, answers)
        for name, steps in ((LEADLINE, mixed), (LEADLINE, full_only), (FIXED, mixed))
    )
    n, name = RunPredictions.pooled([draw.answer for draw in ours]).n, f"{history.name}: campaign by a fixed rule"
    how = (
        f"ends at an own error of {PROMISE:g} % at full scale; {_words(ours)}; full-scale runs alone: {_words(alone)}; "
        f"{FIXED}: {_words(harp)}"
    )
    saved, harp_saved = _cost_s(alone) / _cost_s(ours), _cost_s(alone) / _cost_s(harp)
    title = f"{name}, times cheaper than full-scale runs alone"
    if all(draw.stopped for draw in ours):
        saving = at_least(title, saved, SAVED, "×", baseline=harp_saved, n=n, how=f"{how}; baseline: {FIXED}")
    else:
        how = f"no promise of {PROMISE:g} % in every draw; {how}; baseline: {FIXED}"
        saving = BenchmarkRow(title, saved, "×", target=SAVED, met=False, baseline=harp_saved, n=n, how=how)
    as_many = sum(draw.as_many * draw.cost_s for draw in ours) / _cost_s(ours)
    return [
        saving,
        at_most(f"{name}, MAPE", _error(ours), PROMISE, "%", baseline=_error(harp), n=n,
                how=f"full-scale runs alone: {_error(alone):.1f} %; baseline: {FIXED}"),
        BenchmarkRow(f"{name}, cost of as many full-scale runs ÷ its own", as_many, "×", n=n,
                     how="no target: nobody needs as many runs at full scale"),
    ]  # fmt: skip


def _stop(
    history: MeasuredHistory, steps: Sequence[GrowingCampaign], name: str, answers: Answers
) -> list[StoppedCampaign]:
    """Return each draw at the first step whose model promises the error, or at the last."""
    stopped = []
    for draw in range(DRAWS):
        for step in steps:
            question = step.questions(name)[draw]
            answer = answers[question][name]
            promised = float(answer.own_error[0]) <= PROMISE
            if promised or step is steps[-1]:
                split = question.split(history)
                stopped.append(
                    StoppedCampaign(promised, len(split.learned), cost_s(split.learned), split.cheaper, answer)
                )
                break
    return stopped


def _cost_s(draws: Sequence[StoppedCampaign]) -> float:
    return sum(draw.cost_s for draw in draws)


def _error(draws: Sequence[StoppedCampaign]) -> float:
    pooled = RunPredictions.pooled([draw.answer for draw in draws])
    return mape(pooled.measured.tolist(), pooled.point.tolist())


def _words(draws: Sequence[StoppedCampaign]) -> str:
    """Describe the draws of a campaign: runs, seconds, and the promised error."""
    parts = []
    for draw in draws:
        own_error = float(np.mean(draw.answer.own_error))
        ending = f"promises {own_error:.1f} %" + ("" if draw.stopped else ", not stopped")
        parts.append(f"{draw.runs} runs, {draw.cost_s:.0f} s ({ending})")
    return " and ".join(parts)
