"""Map a question to a tool and its arguments without a language model.

Patterns read the values and names that a question has, then cues in the rest decide for a tool. A question that
no tool answers for certain is refused: a wrong answer is worse than none.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from leadline.core.frozen import Frozen
from leadline.interfaces.chat import cues
from leadline.interfaces.chat.language import NUMBER, normal, number
from leadline.interfaces.chat.names import read_command, read_jobs, read_places, read_workload
from leadline.interfaces.chat.slots import (
    BATCH,
    Reading,
    read_samples,
    read_size,
    read_spans,
    read_workload_options,
)

WORKLOAD_TOOLS = ("estimate", "fit", "recommend")
JOB_TOOLS = ("jobs", "logs", "explain", "cancel")
LIMITS = ("deadline_s", "budget", "currency", "risk")
"""Arguments that only some of the workload's tools have."""
KEPT = {"estimate": (), "fit": ("risk",), "recommend": LIMITS}
NOT_UNDERSTOOD = (
    "I did not understand this. Ask for the time, memory or cost of a workload, whether it fits, where to run it, or "
    "for systems, devices, jobs, logs, runs, models or campaigns."
)


class ToolCall(Frozen):
    """A tool and its arguments.

    Attributes:
        tool: name of the tool.
        arguments: its arguments.
        focus: the argument that was said last, which a bare number in the next question changes.
    """

    tool: str
    arguments: Mapping[str, Any]
    focus: str = ""


class Refusal(Frozen):
    """Why a question is not answered, as a sentence for its user."""

    why: str


def understand(text: str, before: ToolCall | None, systems: Collection[str]) -> ToolCall | Refusal:
    """Return what a question asks for.

    Args:
        text: The question.
        before: The call of the question before it in the conversation, which it may refer to.
        systems: Names of the systems in the catalog.
    """
    if cues.says(cues.INJECTION, text):
        return Refusal("This asks me to leave my rules. I answer with the tools only, and change nothing unasked.")
    question = _Question(normal(text, cues.VOCABULARY), before, systems)
    if why := question.impossible():
        return Refusal(why)
    return question.call() or Refusal(NOT_UNDERSTOOD)


class _Question:
    """A question at work."""

    def __init__(self, text: str, before: ToolCall | None, systems: Collection[str]) -> None:
        self.text = text
        self.before = before
        self.reading = Reading(text)
        self.command = read_command(self.reading) if cues.says(cues.SUBMIT, text) else ()
        self.submits = bool(self.command) or (before is not None and before.tool == "submit")
        read_workload(self.reading)
        self.words = self.reading.text
        for match in self.reading.take(cues.NEGATED, all_of_them=True) if before is not None else ():
            del match  # what is not wanted any more
        about_jobs = self._may_name_jobs()
        self.jobs = read_jobs(self.reading, said=True) if about_jobs else []
        self.risk = self._risk()
        self.budget = self._budget()
        read_workload_options(self.reading)
        self.places = read_places(self.reading, systems)
        self.spans = list(read_spans(self.reading))
        if not about_jobs and "workload" not in self.reading.slots:
            self.jobs = read_jobs(self.reading, said=False)
        self.values, self.vary = self._parameters()
        if self.jobs and (self.values or self.vary) and "workload" not in self.reading.slots:
            self.reading.put("workload", self.jobs[0], 0)

    def says(self, pattern: str) -> bool:
        """Tell whether the whole question matches a pattern."""
        return cues.says(pattern, self.text)

    def impossible(self) -> str:
        """Return why no tool can do what the question orders; empty if it orders nothing of the kind."""
        estimates = self.says(r"\b(?:how long|memory|cost|fit)\b")
        if self.says(cues.QUALITY) and "workload" in self.reading.slots and not estimates:
            return "I predict time, memory and cost, and not how good a model becomes."
        if self.says(cues.OPERATION) and not self.jobs and not self.says(cues.CANCEL) and "workload" not in self.reading.slots:
            return "I do not know how a system is doing today."
        if self.says(cues.IMPOSSIBLE) and not self.submits:
            return "None of my tools can do this; I predict, recommend, show, submit and cancel."
        return ""

    def call(self) -> ToolCall | None:
        """Return the call, or None if no tool is certain."""
        for attempt in (self._submit, self._cancel, self._about_jobs, self._lists, self._about_workload, self._shows,
                        self._follow_up):  # fmt: skip
            if (found := attempt()) is not None:
                return found
        return None

    # Jobs

    def _may_name_jobs(self) -> bool:
        tool = self.before.tool if self.before else ""
        return "workload" not in self.reading.slots and (self.says(cues.JOB_WORDS) or tool in JOB_TOOLS)

    def _submit(self) -> ToolCall | None:
        before = dict(self.before.arguments) if self.before and self.before.tool == "submit" else None
        if not self.command and (before is None or self.says(cues.OTHER_THAN_SUBMIT)):
            return None
        arguments = {**(before or {}), **({"command": list(self.command)} if self.command else {})}
        new = self._submit_options()
        if before is not None and not self.command and not new:
            return None
        return ToolCall("submit", {**arguments, **new})

    def _submit_options(self) -> dict[str, Any]:
        reading, new = self.reading, dict[str, Any]()
        if self.places:
            new["on"] = [name for name, _ in self.places]
        for name, pattern in cues.SUBMIT_NAMES.items():
            if match := re.search(pattern, self.words, re.IGNORECASE):
                new[name] = match[1].strip("\"'`.,")
        for name, patterns in cues.SUBMIT_COUNTS.items():
            for pattern in patterns:
                for match in reading.take(pattern):
                    new.setdefault(name, int(number(match[1], match[2])))
        if (size := read_size(reading)) is not None:
            new["memory_bytes"] = size
        if self.spans:
            new["time_s"] = self.spans[-1][1]
        gpus, nodes = self._gpus()
        new |= {name: count for name, count in (("gpus", gpus), ("nodes", nodes)) if count}
        if reading.says(cues.RESUMES):
            new["resumes"] = True
        return new

    def _cancel(self) -> ToolCall | None:
        if not self.says(cues.CANCEL) or self.says(cues.WHY) or "workload" in self.reading.slots:
            return None
        if self.jobs:
            return ToolCall("cancel", {"jobs": self.jobs})
        if self.says(cues.ALL_JOBS):
            return ToolCall("cancel", {"all": True})
        job = self._job_before()
        return ToolCall("cancel", {"jobs": [job]}) if job and self.says(cues.IT) else None

    def _job_before(self) -> str:
        """Return the job that the question before was about."""
        if self.before is None or self.before.tool not in JOB_TOOLS:
            return ""
        jobs = self.before.arguments.get("jobs", [])
        return self.before.arguments.get("job", "") or (jobs[0] if len(jobs) == 1 else "")

    def _about_jobs(self) -> ToolCall | None:
        if "workload" in self.reading.slots:
            return None
        named = self._about_named()
        if named is not None:
            return named
        job = self.jobs[0] if self.jobs else self._job_before()
        if job and self.says(cues.LOGS):
            return ToolCall("logs", {"job": job, **self._log_options()})
        if job and self.says(cues.WHY):
            return ToolCall("explain", {"job": job})
        if (self.jobs and self.says(cues.STATUS)) or (job and self.says(cues.STATUS_OF_IT)):
            return ToolCall("jobs", {"job": job})
        return self._job_again()

    def _job_again(self) -> ToolCall | None:
        """Return the call before for another job, or with other options."""
        before = self.before
        if before is None or before.tool not in JOB_TOOLS:
            return None
        if before.tool == "logs" and (options := self._log_options()) and not self.jobs:
            return ToolCall("logs", {**before.arguments, **options})
        if self.jobs and self.says(cues.AND):
            if before.tool == "cancel":
                return ToolCall("cancel", {"jobs": [*before.arguments.get("jobs", []), *self.jobs] if self.says(cues.ALSO)
                                           else self.jobs})  # fmt: skip
            return ToolCall(before.tool, {**before.arguments, "job": self.jobs[0]}) if "job" in before.arguments else None
        return None

    def _log_options(self) -> dict[str, int]:
        options = {}
        for name, patterns in cues.LOG_COUNTS.items():
            for pattern in patterns:
                for match in self.reading.take(pattern):
                    options.setdefault(name, int(number(match[1], match[2])))
        for word, count in cues.ORDINALS.items():
            if self.says(rf"\b{word} (?:attempt|try|run)\b"):
                options.setdefault("attempt", count)
        return options

    def _about_named(self) -> ToolCall | None:
        """Return a call about campaigns, models or past runs."""
        text = self.text
        if self.says(cues.CAMPAIGNS) and not self.says(cues.NOT_CAMPAIGNS):
            return ToolCall("campaigns", self._name("campaign"))
        if self.says(cues.MODELS) or (self.says(cues.MODEL_CARD) and self.jobs):
            return ToolCall("models", self._name("model"))
        run = re.search(cues.RUN_ID, text, re.IGNORECASE)
        if run and not self.says(cues.JOB_ONLY):
            return ToolCall("history", {"run": run[1] or run[2]})
        if self.says(cues.HISTORY) and not self.says(cues.NOT_HISTORY):
            limit = self._limit()
            return ToolCall("history", {"limit": limit} if limit else {})
        if self.before and self.before.tool in ("campaigns", "models", "history") and self.says(cues.AND):
            if self.jobs:
                key = {"campaigns": "name", "models": "name", "history": "run"}[self.before.tool]
                return ToolCall(self.before.tool, {key: self.jobs[0]})
            if self.before.tool == "history" and (limit := self._limit()):
                return ToolCall("history", {"limit": limit})
        return None

    def _name(self, noun: str) -> dict[str, str]:
        near = re.search(rf"\b{noun}s? (?:named |called |id )?[\"'`]?([\w][\w.-]*[\w])[\"'`]?", self.text, re.IGNORECASE)
        if self.jobs:
            return {"name": self.jobs[0]}
        if near and re.search(r"[\d_-]", near[1]):
            return {"name": near[1]}
        return {}

    def _limit(self) -> int | None:
        for pattern in cues.LIMIT:
            for match in self.reading.take(pattern):
                return int(number(match[1], match[2]))
        return None

    # Lists and single systems and devices

    def _lists(self) -> ToolCall | None:
        if "workload" in self.reading.slots or self.jobs:
            return None
        if not self.places and self.says(cues.LIST_JOBS) and not self.says(cues.NOT_JOBS):
            limit = self._limit()
            return ToolCall("jobs", {**({"all": True} if self.says(cues.ENDED) else {}), **({"limit": limit} if limit else {})})
        if self.before and self.before.tool == "jobs" and "job" not in self.before.arguments and not self.places:
            limit = self._limit()
            if self.says(cues.ENDED) or (limit and self.says(cues.AND)):
                return ToolCall("jobs", {**self.before.arguments, **({"all": True} if self.says(cues.ENDED) else {}),
                                         **({"limit": limit} if limit else {})})  # fmt: skip
        if self.places or self.budget:
            return None
        if self.says(cues.LIST_SYSTEMS) and not self.says(cues.NOT_SYSTEMS):
            return ToolCall("systems", {})
        if self.says(cues.LIST_DEVICES) and not self.says(cues.NOT_SYSTEMS):
            return ToolCall("devices", {})
        return None

    def _shows(self) -> ToolCall | None:
        if "workload" in self.reading.slots or not self.places:
            return None
        name, kind = self.places[0]
        tool = {"device": "devices", "system": "systems"}.get(kind)
        if self.before is None or self.before.tool not in WORKLOAD_TOOLS:
            systems = [one for one, of in self.places if of == "system"]
            if systems and self.says(cues.SHOW_SYSTEM):
                return ToolCall("systems", {"name": systems[0]})
            if tool and len(self.places) == 1 and self.says(cues.SHOW_DEVICE if tool == "devices" else cues.SHOW_SYSTEM):
                return ToolCall(tool, {"name": name})
            if tool and self.before and self.before.tool in ("systems", "devices") and self.says(cues.AND):
                return ToolCall(tool, {"name": name})
        return None

    # Workloads

    def _about_workload(self) -> ToolCall | None:
        if "workload" not in self.reading.slots:
            return None
        new = self._workload_arguments()
        tool = self._workload_tool(new, "")
        return self._made(tool, new) if tool else None

    def _follow_up(self) -> ToolCall | None:
        before = self.before
        if before is None or before.tool not in WORKLOAD_TOOLS or self.says(cues.OFF_TOPIC):
            return None
        new = self._workload_arguments()
        new |= self._scaled(before.arguments) if not new else {}
        if "budget" in before.arguments and "budget" not in new:
            new |= self._other_currency()
        tool = before.tool if "currency" in new else self._workload_tool(new, before.tool)
        if not new and (bare := re.search(NUMBER, self.reading.text, re.IGNORECASE)) and before.focus:
            value = number(bare[1], bare[2])
            new[before.focus] = int(value) if value == int(value) else value
        cued = self._workload_tool({}, "")
        if not tool or not (new or tool != before.tool or cued or self.says(cues.AGAIN)):
            return None
        kept = {name: value for name, value in before.arguments.items() if name not in LIMITS or name in KEPT[tool]}
        if "on" in new and "on" in kept and self.says(cues.ALSO) and not self.says(cues.INSTEAD):
            new["on"] = [*kept["on"], *(place for place in new["on"] if place not in kept["on"])]
        if "generate" in kept and "seq" in new and "seq" not in kept:
            new["generate"] = new.pop("seq")
        if new.get("phase") == kept.get("phase"):
            new.pop("phase", None)
        return self._made(tool, {**kept, **new}, focus=next(reversed(new), ""))

    def _made(self, tool: str, arguments: Mapping[str, Any], focus: str = "") -> ToolCall:
        allowed = {name: value for name, value in arguments.items() if name not in LIMITS or name in KEPT[tool]}
        last = focus or max(self.reading.places, key=self.reading.places.__getitem__, default="")
        return ToolCall(tool, allowed, last if last != "workload" else "")

    def _workload_tool(self, new: Mapping[str, Any], before: str) -> str:
        """Return the tool for a question about a workload."""
        if self.says(cues.FIT) and not self.says(cues.MEMORY_ONLY):
            return "fit"
        if self.says(cues.RECOMMEND) or "budget" in new or "deadline_s" in new:
            return "recommend"
        if self.says(cues.ESTIMATE):
            return "estimate"
        if before:
            return before
        return "estimate" if len(new) > 1 and not self.says(cues.OFF_TOPIC) else ""

    def _workload_arguments(self) -> dict[str, Any]:
        """Return the arguments of a workload's tools that the question says."""
        reading = self.reading
        gpus, _ = self._gpus()
        read_samples(reading)
        new: dict[str, Any] = dict(reading.slots)
        if self.places:
            new["on"] = [name for name, _ in self.places]
        if gpus:
            new["gpus"] = gpus
        new |= {name: value for name, value in (("values", self.values), ("vary", self.vary)) if value}
        if (phase := self._phase(new)) is not None:
            new["phase"] = phase
        limits: dict[str, Any] = dict(self.budget or {})
        if self.spans:
            limits["deadline_s"] = self.spans[-1][1]
        elif (seconds := cues.deadline_in_words(self.text)) is not None:
            limits["deadline_s"] = seconds
        if self.risk is not None:
            limits["risk"] = self.risk
        return new | limits

    def _phase(self, new: Mapping[str, Any]) -> str | None:
        if "generate" in new or (cues.says(cues.INFERENCE, self.words) and not cues.says(cues.TRAINING, self.words)):
            return "inference"
        return "training" if cues.says(cues.TRAINING, self.words) else None

    def _gpus(self) -> tuple[int | None, int | None]:
        """Return the GPUs of the whole job and its nodes, if said."""
        for pattern in cues.GPUS_BY_NODES:
            for match in self.reading.take(pattern):
                nodes, each = int(match["nodes"]), int(match["each"])
                return nodes * each, nodes
        nodes = next((int(match[1]) for match in self.reading.take(cues.NODES)), None)
        for pattern in cues.GPUS:
            for match in self.reading.take(pattern):
                count = int(match[1])
                per_node = nodes and re.search(cues.PER_NODE, self.text, re.IGNORECASE)
                return (count * nodes if nodes and per_node else count), nodes
        return None, nodes

    def _risk(self) -> float | None:
        for pattern, turned in cues.RISKS:
            for match in self.reading.take(pattern):
                value = float(match[1]) / (1 if "." in match[1] and float(match[1]) < 1 and "%" not in match[0] else 100)
                return round(1 - value if turned else value, 6)
        for match in self.reading.take(cues.ODDS):
            return round(1 / int(match[1] or match[2]), 6)
        for pattern, share in cues.RISKS_IN_WORDS:
            for _ in self.reading.take(pattern):
                return share
        return None

    def _parameters(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """Return the parameters of a trained model: values, and lists of values to try."""
        vary: dict[str, list[Any]] = {}
        for match in self.reading.take(r"\bvary (?:the )?([a-z_]\w*) (?:over|from|in|as|across|through|between|with|=)\s?((?:-?\d+(?:\.\d+)?(?:, (?:and )?| and | or |,)?)+)", all_of_them=True):
            vary[match[1]] = [_plain_number(one) for one in re.findall(r"-?\d+(?:\.\d+)?", match[2])]
        values = {
            match[1]: _plain_number(match[2])
            for match in self.reading.take(r"(?<![\w-])([a-z_]\w*)\s?=\s?(-?\d+(?:\.\d+)?)(?![\w.]*\w)", all_of_them=True)
        }
        return values, vary

    def _scaled(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return an argument of the question before, made twice or half as large."""
        factor = next((value for word, value in cues.TWICE.items() if self.says(rf"\b{word}\b")), None)
        if factor is None:
            return {}
        for name, pattern in cues.SCALED:
            if self.says(pattern) and isinstance(before.get(name), int | float):
                value = before[name] * factor
                return {name: int(value) if value == int(value) else value}
        return {}

    def _other_currency(self) -> dict[str, Any]:
        currency = next((name for name, pattern in cues.CURRENCIES if self.says(pattern)), None)
        if currency is None:
            return {}
        bare = re.search(NUMBER, self.reading.text, re.IGNORECASE)
        value = number(bare[1], bare[2]) if bare else None
        amount = {} if value is None else {"budget": int(value) if value == int(value) else value}
        return {**amount, "currency": currency}

    def _budget(self) -> dict[str, Any] | None:
        for pattern, currency in cues.MONEY:
            for match in self.reading.take(pattern):
                value = number(match[1], match[2])
                return {"budget": int(value) if value == int(value) else value, "currency": currency}
        return None


def _plain_number(text: str) -> int | float:
    value = float(text)
    return int(value) if value == int(value) else value


__all__ = ["BATCH", "Refusal", "ToolCall", "understand"]
