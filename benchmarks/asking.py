"""Ask contenders many questions at once, on all cores: each learns from one split and is asked about it."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.histories import History, Split, split
from benchmarks.predictors import CONTENDERS, Answered

JOBS = os.cpu_count() or 1
Progress = Callable[[int, int], None]
"""Told how many questions were answered, and how many there are."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a contender is to learn from (all scaled-down configurations of a history, or some) and to predict."""

    contender: str
    history: str
    target: str
    full_scale: int
    seed: int
    scaled_down: int | None = None

    def split(self, history: History) -> Split:
        """Return the runs to learn from, and those that are asked about."""
        return split(history, self.full_scale, self.seed, scaled_down=self.scaled_down)


Answers = Mapping[Question, Mapping[str, Answered]]
"""Question → what each method of the contender answered."""


def pooled(answers: Answers, questions: Sequence[Question]) -> dict[str, Answered]:
    """Return what each method of a contender answered, all questions together."""
    said = [answers[one] for one in questions]
    return {method: Answered.pooled([one[method] for one in said]) for method in said[0]}


def ask_all(
    histories: Iterable[History], questions: Iterable[Question], progress: Progress = lambda *_: None
) -> Answers:
    """Return the answer to each question, asked once however often it is there."""
    from joblib import Parallel, delayed  # noqa: PLC0415 - comes with scikit-learn, which not everyone has

    named = {one.name: one for one in histories}
    wanted = list(dict.fromkeys(questions))
    said: dict[Question, Mapping[str, Answered]] = {}
    progress(0, len(wanted))
    told = Parallel(n_jobs=JOBS, return_as="generator")(delayed(_ask)(one, named[one.history]) for one in wanted)
    for question, answer in zip(wanted, told, strict=True):
        said[question] = answer
        progress(len(said), len(wanted))
    return said


def _ask(question: Question, history: History) -> Mapping[str, Answered]:
    return CONTENDERS[question.contender](question.split(history), question.target, question.seed)
