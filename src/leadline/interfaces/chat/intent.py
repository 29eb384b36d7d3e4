"""Choose the tool that a question asks for: a linear model over its words, names, values and cues.

``benchmarks.interfaces.fit_chat`` fits the model to the development questions and writes ``learned.json``; with
``--cross-validate`` it prints how a fit does on questions that it has not seen, and writes nothing.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise

import msgspec

from leadline.interfaces.chat.question import Question

REFUSED = "refuse"
"""The class of questions that no tool answers."""
DOUBT = 50
"""Weight in hundredths by which a question with a job or a workload is rather answered than refused.

Chosen where each development set was left out of the fit: 5 more of 1,290 questions right, 1 of 510 fewer refused.
"""
CUES = (
    "again", "all-jobs", "also", "and", "campaigns", "cancel", "consent", "ended", "estimate", "fit", "history",
    "impossible", "inference", "injection", "instead", "it", "job-only", "job-words", "list-devices", "list-jobs",
    "list-systems", "logs", "measured", "memory-only", "model-card", "models", "not-campaigns", "not-history",
    "not-jobs", "not-systems", "off-topic", "operation", "other-than-submit", "pipelines", "quality", "recommend",
    "show-device", "show-system", "status", "status-of-it", "submit", "training", "why",
)  # fmt: skip
"""Cues that are features of a question."""
_TOKEN = re.compile(r"_+|[^\W\d_]+(?:'[^\W\d_]+)?|\d+|[?!]")


class Learned(msgspec.Struct):
    """What was learned from questions.

    Attributes:
        tools: the classes in the order of the weights.
        intercepts: weight of each class.
        weights: feature → weight of each class, in hundredths.
        known: words of questions that a tool answers.
    """

    tools: list[str]
    intercepts: list[int]
    weights: dict[str, list[int]]
    known: set[str]


@cache
def learned() -> Learned:
    """Return the stored model."""
    return msgspec.json.decode(files("leadline.interfaces.chat").joinpath("learned.json").read_bytes(), type=Learned)


def features(question: Question) -> set[str]:
    """Return the features of a question: words and pairs of words that no pattern took, what was taken, and cues."""
    tokens = [_plain(token) for token in _TOKEN.findall(question.left_of_request().lower())]
    names = {f"word {token}" for token in tokens}
    names |= {f"pair {first} {second}" for first, second in pairwise(["^", *tokens, "$"])}
    names |= {f"cue {cue}" for cue in CUES if question.says(cue)}
    names |= {f"has {kind}" for _, kind in question.places}
    names |= {f"has {name}" for name, value in _parts(question).items() if value}
    return names | {f"after {question.before.tool if question.before else 'nothing'}"}


def _plain(token: str) -> str:
    return "_" if token.startswith("_") else "0" if token.isdigit() else token


def _parts(question: Question) -> Mapping[str, bool]:
    return {
        "workload": question.has_workload, "job": bool(question.jobs), "jobs": len(question.jobs) > 1,
        "places": len(question.places) > 1, "duration": bool(question.spans), "budget": bool(question.budget),
        "risk": question.risk is not None, "command": bool(question.command),
        "parameters": bool(question.values or question.vary),
        "options": bool(set(question.reading.slots) - {"workload"}),
    }  # fmt: skip


def likely_tool(question: Question, model: Learned) -> str:
    """Return the tool with the largest weight, or ``REFUSED``."""
    totals = list(model.intercepts)
    for feature in features(question):
        for at, weight in enumerate(model.weights.get(feature, ())):
            totals[at] += weight
    if question.jobs or question.has_workload:
        totals[model.tools.index(REFUSED)] -= DOUBT
    return model.tools[max(range(len(totals)), key=totals.__getitem__)]
