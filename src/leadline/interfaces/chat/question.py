"""A question of a user: the names, options and limits in it, and the sentences that make its request."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from leadline.core.frozen import Frozen
from leadline.interfaces.chat import cues
from leadline.interfaces.chat.language import number, tidy
from leadline.interfaces.chat.names import read_command, read_jobs, read_places, read_workload
from leadline.interfaces.chat.slots import Reading, read_spans, read_workload_options

WORKLOAD_TOOLS = ("estimate", "fit", "recommend")
JOB_TOOLS = ("jobs", "logs", "explain", "cancel")
SHORT = 2
"""Sentences of a question without much context."""
_SENTENCE = re.compile(r"\S.*?(?:[.!?]+(?=\s|$)|$)")


class ToolCall(Frozen):
    """A tool and its arguments.

    Attributes:
        tool: name of the tool.
        arguments: its arguments.
        focus: the argument that was said last, which a bare number in the next question changes.
        nodes: nodes of the GPUs, if they were said, so that the next question can ask for another number of them.
    """

    tool: str
    arguments: Mapping[str, Any]
    focus: str = ""
    nodes: int = 0


class Question:
    """A question at work.

    Names and options may stand anywhere in it. Cues and durations count only in the sentences that make the request.

    Attributes:
        text: the question in plain words and digits.
        before: the call of the question before it, which it may refer to.
        reading: what no pattern has taken yet, and the options of a workload.
        command: words of the command to submit.
        jobs: names and ids of jobs.
        places: names and kinds of places: device, system or local.
        unwanted: names that the question leaves out, in lower case.
        spans: durations in seconds.
        budget: arguments of a budget: amount and currency.
        risk: accepted risk as a share.
        values: parameters of a trained model, and ``vary`` lists of values to try.
    """

    def __init__(self, text: str, before: ToolCall | None, systems: Collection[str]) -> None:
        self.text = text
        self.before = before
        sentences = [(match.start(), match.end()) for match in _SENTENCE.finditer(text)]
        self._is_short = len(sentences) <= SHORT
        requests = [] if self._is_short else [at for at in sentences if cues.says("request", text[slice(*at)])]
        self._requests = requests or sentences
        self._asked = " ".join(text[slice(*at)] for at in self._requests)
        self.reading = Reading(text)
        submits = cues.says("submit", text)
        self.command = read_command(self.reading, quoted=not submits) if submits or self.follows("submit") else ()
        read_workload(self.reading)
        self._beside_workload = self.reading.text
        unwanted = self.reading.take("negated", all_of_them=True) if before is not None else ()
        self.unwanted = " ".join(match[0].lower() for match in unwanted)
        about_jobs = not self.has_workload and (self.says("job-words") or self.follows(*JOB_TOOLS))
        self.jobs = read_jobs(self.reading, systems, about_jobs=True) if about_jobs else []
        self.risk = _risk(self.reading)
        self.budget = _budget(self.reading)
        read_workload_options(self.reading)
        self.places = read_places(self.reading, systems, self._is_requested)
        self.spans = [seconds for at, seconds in read_spans(self.reading) if self._is_requested(at)]
        if not about_jobs and not self.has_workload:
            self.jobs = read_jobs(self.reading, systems, about_jobs=False)
        self.values, self.vary = _parameters(self.reading)
        self.nodes: int | None = None
        if self.jobs and (self.values or self.vary) and not self.has_workload:
            self.reading.put("workload", self.jobs[0], 0)

    @property
    def has_workload(self) -> bool:
        """Whether the question names a workload."""
        return "workload" in self.reading.slots

    @property
    def has_values(self) -> bool:
        """Whether the question names places, options or limits of a workload."""
        return bool(self.places or self.spans or self.budget or self.risk or self.reading.slots)

    @property
    def trains(self) -> bool:
        """Whether the question is about training."""
        return cues.says("training", self._beside_workload)

    @property
    def infers(self) -> bool:
        """Whether the question is about inference."""
        return cues.says("inference", self._beside_workload)

    def says(self, *names: str) -> bool:
        """Tell whether the request matches each of some cues."""
        return all(cues.says(cue, self._asked) for cue in names)

    def follows(self, *tools: str) -> bool:
        """Tell whether the question comes after a call of one of some tools."""
        return self.before is not None and self.before.tool in tools

    def find(self, cue: str) -> str:
        """Return the first group of a cue that matches the text; empty without one."""
        match = cues.pattern(cue).search(self.text)
        return next(filter(None, match.groups()), "") if match else ""

    def limit(self) -> dict[str, int]:
        """Return the argument that limits the length of a list."""
        for match in self.reading.take_in_order("limit"):
            return {"limit": int(number(match[1], match[2]))}
        return {}

    def gpus(self) -> tuple[int | None, int | None]:
        """Return the GPUs of the whole job and its nodes, if said."""
        gpus = None
        for match in self.reading.take_in_order("gpus-by-nodes"):
            self.nodes = int(match["nodes"])
            return self.nodes * int(match["each"]), self.nodes
        self.nodes = next((int(match[1]) for match in self.reading.take("nodes")), None)
        for match in self.reading.take_in_order("gpus"):
            gpus = int(match[1]) * (self.nodes if self.nodes and self.says("per-node") else 1)
            break
        return gpus, self.nodes

    def bare_number(self) -> int | float | None:
        """Return a number that no pattern took."""
        match = cues.pattern("number").search(self.reading.text)
        return tidy(number(match[1], match[2])) if match else None

    def left_of_request(self) -> str:
        """Return what no pattern took of the request's sentences."""
        return " ".join(self.reading.text[slice(*at)] for at in self._requests)

    def left_words(self) -> list[str]:
        """Return the words that no pattern took: of a short question, or of the sentences that ask or order."""
        sentences = [at for at in self._requests if cues.says("asking", self.text[slice(*at)])] or self._requests
        left = self.reading.text if self._is_short else " ".join(self.reading.text[slice(*at)] for at in sentences)
        return re.findall(r"[^\W\d_]{2,}(?:'[^\W\d_]+)?", left.lower())

    def _is_requested(self, at: int) -> bool:
        return any(begin <= at < end for begin, end in self._requests)


def _risk(reading: Reading) -> float | None:
    for match in reading.take("odds"):
        return round(1 / max(1, int(match[1] or match[2])), 6)
    for cue in ("risk", "certainty", "percent"):
        for match in reading.take_in_order(cue):
            is_share = "." in match[1] and float(match[1]) < 1 and not cues.says("percent-sign", match[0])
            value = float(match[1]) / (1 if is_share else 100)
            return round(1 - value if cue == "certainty" else value, 6)
    return next((float(share) for share, _ in reading.take_values("risks-in-words")), None)


def _budget(reading: Reading) -> dict[str, Any]:
    for currency, match in reading.take_values("money"):
        return {"budget": tidy(number(match[1], match[2])), "currency": currency}
    return {}


def _parameters(reading: Reading) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the parameters of a trained model: values, and lists of values to try."""
    vary = {
        match[1]: [tidy(float(value)) for value in re.findall(r"-?\d+(?:\.\d+)?", match[2])]
        for match in reading.take("vary", all_of_them=True)
    }
    values = {match[1]: tidy(float(match[2])) for match in reading.take("parameter", all_of_them=True)}
    return values, vary
