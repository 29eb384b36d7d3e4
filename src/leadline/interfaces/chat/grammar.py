"""Map a question to a tool and its arguments without a language model.

Patterns read the values and names that a question has, then cues in the rest decide for a tool. A question that
no tool answers for certain is refused: a wrong answer is worse than none.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from leadline.core.frozen import Frozen
from leadline.interfaces.chat import cues
from leadline.interfaces.chat.language import normal, number, tidy
from leadline.interfaces.chat.names import read_command, read_jobs, read_places, read_workload
from leadline.interfaces.chat.slots import Reading, read_samples, read_size, read_spans, read_workload_options

WORKLOAD_TOOLS = ("estimate", "fit", "recommend")
JOB_TOOLS = ("jobs", "logs", "explain", "cancel")
LIMITS = ("deadline_s", "budget", "currency", "risk")
"""Arguments that only some of the workload's tools have."""
KEPT = {"estimate": (), "fit": ("risk",), "recommend": LIMITS}
_SENTENCE = re.compile(r"\S.*?(?:[.!?]+(?=\s|$)|$)")
SHORT = 2
"""Sentences of a question without much context."""
MOST_UNKNOWN = 3
"""Words of a question that may be unknown, or a quarter of them."""
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
    if cues.says("injection", text):
        return Refusal("This asks me to leave my rules. I answer with the tools only, and change nothing unasked.")
    question = _Question(normal(text), before, systems)
    if why := question.impossible():
        return Refusal(why)
    return question.call() or Refusal(NOT_UNDERSTOOD)


def _request_sentences(text: str) -> list[tuple[int, int]]:
    """Return begin and end of the sentences that ask or order something, or say how; of all if there are none."""
    sentences = [(match.start(), match.end()) for match in _SENTENCE.finditer(text)]
    return [(begin, end) for begin, end in sentences if cues.says("request", text[begin:end])] or sentences


class _Question:
    """A question at work.

    Names and options may stand anywhere in it. Cues and durations count only in the sentences that make the request.
    """

    def __init__(self, text: str, before: ToolCall | None, systems: Collection[str]) -> None:
        self.text = text
        self.sentences = _request_sentences(text)
        self.asked = self._requested(text)
        self.before = before
        self.reading = Reading(text)
        self.command = read_command(self.reading) if cues.says("submit", text) else ()
        self.submits = bool(self.command) or (before is not None and before.tool == "submit")
        read_workload(self.reading)
        self.words = self.reading.text
        unwanted = self.reading.take("negated", all_of_them=True) if before is not None else ()
        self.unwanted = " ".join(match[0].lower() for match in unwanted)
        about_jobs = self._may_name_jobs()
        self.jobs = read_jobs(self.reading, systems, said=True) if about_jobs else []
        self.risk = self._risk()
        self.budget = self._budget()
        read_workload_options(self.reading)
        self.places = read_places(self.reading, systems, self._is_requested)
        self.spans = [(at, seconds) for at, seconds in read_spans(self.reading) if self._is_requested(at)]
        if not about_jobs and "workload" not in self.reading.slots:
            self.jobs = read_jobs(self.reading, systems, said=False)
        self.values, self.vary = self._parameters()
        if self.jobs and (self.values or self.vary) and "workload" not in self.reading.slots:
            self.reading.put("workload", self.jobs[0], 0)

    def says(self, cue: str) -> bool:
        """Tell whether the request matches a cue."""
        return cues.says(cue, self.asked)

    def _requested(self, text: str) -> str:
        """Return the request's sentences of a text that is as long as the question."""
        return " ".join(text[begin:end] for begin, end in self.sentences)

    def _left_of_request(self) -> str:
        """Return what no cue took of a short question, or of the sentences that ask or order something."""
        if len(_SENTENCE.findall(self.text)) <= SHORT:
            return self.reading.text
        asking = [(begin, end) for begin, end in self.sentences if cues.says("asking", self.text[begin:end])]
        return " ".join(self.reading.text[begin:end] for begin, end in asking or self.sentences)

    def _is_requested(self, at: int) -> bool:
        return any(begin <= at < end for begin, end in self.sentences)

    def impossible(self) -> str:
        """Return why no tool can do what the question orders; empty if it orders nothing of the kind."""
        if self.says("quality") and "workload" in self.reading.slots and not self.says("measured"):
            return "I predict time, memory and cost, and not how good a model becomes."
        if self.says("operation") and not self.jobs and not self.says("cancel") and "workload" not in self.reading.slots:
            return "I do not know how a system is doing today."
        follows = self.before is not None and self.before.tool in WORKLOAD_TOOLS and self._has_new_values()
        asks_to_fit = "workload" in self.reading.slots and self.says("fit")
        if self.says("impossible") and not (self.submits or follows or asks_to_fit):
            return "None of my tools can do this; I predict, recommend, show, submit and cancel."
        return ""

    def _has_new_values(self) -> bool:
        """Tell whether the question names places, options or limits of a workload."""
        return bool(self.places or self.spans or self.budget or self.risk or self.reading.slots)

    def call(self) -> ToolCall | None:
        """Return the call, or None if no tool is certain."""
        for attempt in (self._submit, self._cancel, self._about_jobs, self._lists, self._about_workload, self._shows,
                        self._follow_up):  # fmt: skip
            if (found := attempt()) is not None:
                return found if self._is_certain(found) else None
        return None

    def _is_certain(self, call: ToolCall) -> bool:
        """Tell whether nothing in the question speaks against a call.

        The name of a workload is a strong sign. Other questions must consist of words that such questions have, and an
        order must not speak of the consent that it needs.
        """
        if call.tool in WORKLOAD_TOOLS and not (self.values or self.vary):
            return True
        options = set(self.reading.slots) - ({"phase", "precision"} if call.tool == "devices" else {"phase"})
        if call.tool in ("systems", "devices") and (options or self.spans or self.budget or self.says("submit")):
            return False
        if call.tool in ("submit", "cancel") and cues.says("consent", self.text):
            return False
        words = re.findall(r"[^\W\d_][\w']+", self._left_of_request().lower())
        unknown = [word for word in words if word not in cues.words("known")]
        return len(unknown) <= max(MOST_UNKNOWN, len(words) / 4)

    # Jobs

    def _may_name_jobs(self) -> bool:
        tool = self.before.tool if self.before else ""
        return "workload" not in self.reading.slots and (self.says("job-words") or tool in JOB_TOOLS)

    def _submit(self) -> ToolCall | None:
        before = dict(self.before.arguments) if self.before and self.before.tool == "submit" else None
        if not self.command and (before is None or self.says("other-than-submit")):
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
        for name, patterns in cues.by_value("submit-names").items():
            for match in filter(None, (pattern.search(self.words) for pattern in patterns)):
                new.setdefault(name, match[1].strip("\"'`.,"))
        for name, match in reading.take_values("submit-counts"):
            new.setdefault(name, int(number(match[1], match[2])))
        if (size := read_size(reading)) is not None:
            new["memory_bytes"] = size
        if self.spans:
            new["time_s"] = self.spans[-1][1]
        gpus, nodes = self._gpus()
        new |= {name: count for name, count in (("gpus", gpus), ("nodes", nodes)) if count}
        if reading.says("resumes"):
            new["resumes"] = True
        return new

    def _cancel(self) -> ToolCall | None:
        if not self.says("cancel") or self.says("why") or "workload" in self.reading.slots:
            return None
        if self.jobs:
            also = [self._job_before()] if self._job_before() and self.says("it") and self.says("also") else []
            return ToolCall("cancel", {"jobs": [*also, *self.jobs]})
        if self.says("all-jobs"):
            return ToolCall("cancel", {"all": True})
        job = self._job_before()
        return ToolCall("cancel", {"jobs": [job]}) if job and self.says("it") else None

    def _job_before(self) -> str:
        """Return the job that the question before was about."""
        if self.before is None or self.before.tool not in JOB_TOOLS:
            return ""
        jobs = self.before.arguments.get("jobs", [])
        return self.before.arguments.get("job", "") or (jobs[0] if len(jobs) == 1 else "")

    def _about_jobs(self) -> ToolCall | None:
        follows = self.before is not None and self.before.tool in WORKLOAD_TOOLS
        if "workload" in self.reading.slots or (follows and self.reading.slots):
            return None
        named = self._about_named()
        if named is not None:
            return named
        job = self.jobs[0] if self.jobs else self._job_before()
        if job and self.says("logs"):
            return ToolCall("logs", {"job": job, **self._log_options()})
        if job and self.says("why"):
            return ToolCall("explain", {"job": job})
        if (self.jobs and self.says("status")) or (job and self.says("status-of-it")):
            return ToolCall("jobs", {"job": job})
        return self._job_again()

    def _job_again(self) -> ToolCall | None:
        """Return the call before for another job, or with other options."""
        before = self.before
        if before is None or before.tool not in JOB_TOOLS:
            return None
        if before.tool == "logs" and (options := self._log_options()) and not self.jobs:
            return ToolCall("logs", {**before.arguments, **options})
        if self.jobs and self.says("and"):
            if before.tool == "cancel":
                return ToolCall("cancel", {"jobs": [*before.arguments.get("jobs", []), *self.jobs] if self.says("also")
                                           else self.jobs})  # fmt: skip
            return ToolCall(before.tool, {**before.arguments, "job": self.jobs[0]}) if "job" in before.arguments else None
        return None

    def _log_options(self) -> dict[str, int]:
        options: dict[str, int] = {}
        for name, match in self.reading.take_values("log-counts"):
            options.setdefault(name, int(number(match[1], match[2])))
        for count, _ in self.reading.take_values("ordinals"):
            options.setdefault("attempt", int(count))
        return options

    def _about_named(self) -> ToolCall | None:
        """Return a call about campaigns, models or past runs."""
        text = self.text
        if self.says("campaigns") and not self.says("not-campaigns"):
            return ToolCall("campaigns", self._name("campaign"))
        if self.says("models") or (self.says("model-card") and self.jobs):
            return ToolCall("models", self._name("model"))
        run = cues.pattern("run-id").search(text)
        if run and not self.says("job-only"):
            return ToolCall("history", {"run": run[1] or run[2]})
        if self.says("history") and not self.says("not-history"):
            limit = self._limit()
            return ToolCall("history", {"limit": limit} if limit else {})
        if self.before and self.before.tool in ("campaigns", "models", "history") and self.says("and"):
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
        for match in self.reading.take_in_order("limit"):
            return int(number(match[1], match[2]))
        return None

    # Lists and single systems and devices

    def _lists(self) -> ToolCall | None:
        if "workload" in self.reading.slots or self.jobs:
            return None
        if not self.places and self.says("list-jobs") and not self.says("not-jobs"):
            limit = self._limit()
            return ToolCall("jobs", {**({"all": True} if self.says("ended") else {}), **({"limit": limit} if limit else {})})
        if self.before and self.before.tool == "jobs" and "job" not in self.before.arguments and not self.places:
            limit = self._limit()
            if self.says("ended") or (limit and self.says("and")):
                return ToolCall("jobs", {**self.before.arguments, **({"all": True} if self.says("ended") else {}),
                                         **({"limit": limit} if limit else {})})  # fmt: skip
        if self.places or self.budget:
            return None
        if self.says("list-systems") and not self.says("not-systems"):
            return ToolCall("systems", {})
        if self.says("list-devices") and not self.says("not-systems"):
            return ToolCall("devices", {})
        return None

    def _shows(self) -> ToolCall | None:
        if "workload" in self.reading.slots or not self.places:
            return None
        name, kind = self.places[0]
        tool = {"device": "devices", "system": "systems"}.get(kind)
        if self.before is None or self.before.tool not in WORKLOAD_TOOLS:
            systems = [one for one, of in self.places if of == "system"]
            if systems and self.says("show-system"):
                return ToolCall("systems", {"name": systems[0]})
            if tool and len(self.places) == 1 and self.says("show-device" if tool == "devices" else "show-system"):
                return ToolCall(tool, {"name": name})
            if tool and self.before and self.before.tool in ("systems", "devices") and self.says("and"):
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
        if before is None or before.tool not in WORKLOAD_TOOLS or self.says("off-topic"):
            return None
        new = self._workload_arguments()
        new |= self._scaled(before.arguments) if not new else {}
        if "budget" in before.arguments and "budget" not in new:
            new |= self._other_currency()
        tool = before.tool if "currency" in new else self._workload_tool(new, before.tool)
        if bare := cues.pattern("number").search(self.reading.text):
            if not new and before.focus:
                new[before.focus] = tidy(number(bare[1], bare[2]))
            elif "deadline_s" in new and "budget" in before.arguments and "budget" not in new:
                new["budget"] = tidy(number(bare[1], bare[2]))
        cued = self._workload_tool({}, "")
        if not tool or not (new or tool != before.tool or cued or self.says("again")):
            return None
        kept = {name: value for name, value in before.arguments.items() if name not in LIMITS or name in KEPT[tool]}
        kept["on"] = [place for place in kept.get("on", ()) if place.lower() not in self.unwanted]
        if not kept["on"]:
            del kept["on"]
        if "on" in new and "on" in kept and self.says("also") and not self.says("instead"):
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
        if self.says("fit") and not self.says("memory-only"):
            return "fit"
        if self.says("recommend") or "budget" in new or "deadline_s" in new:
            return "recommend"
        if self.says("estimate"):
            return "estimate"
        if before:
            return before
        return "estimate" if len(new) > 1 and not self.says("off-topic") else ""

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
        else:
            for seconds, _ in self.reading.take_values("deadlines"):
                limits["deadline_s"] = float(seconds)
        if self.risk is not None:
            limits["risk"] = self.risk
        return new | limits

    def _phase(self, new: Mapping[str, Any]) -> str | None:
        if "generate" in new or (cues.says("inference", self.words) and not cues.says("training", self.words)):
            return "inference"
        return "training" if cues.says("training", self.words) else None

    def _gpus(self) -> tuple[int | None, int | None]:
        """Return the GPUs of the whole job and its nodes, if said."""
        for match in self.reading.take_in_order("gpus-by-nodes"):
            return int(match["nodes"]) * int(match["each"]), int(match["nodes"])
        nodes = next((int(match[1]) for match in self.reading.take("nodes")), None)
        for match in self.reading.take_in_order("gpus"):
            return int(match[1]) * (nodes if nodes and self.says("per-node") else 1), nodes
        return None, nodes

    def _risk(self) -> float | None:
        for cue in ("risk", "certainty", "percent"):
            for match in self.reading.take_in_order(cue):
                is_share = "." in match[1] and float(match[1]) < 1 and not cues.says("percent-sign", match[0])
                value = float(match[1]) / (1 if is_share else 100)
                return round(1 - value if cue == "certainty" else value, 6)
        for match in self.reading.take("odds"):
            return round(1 / int(match[1] or match[2]), 6)
        return next((float(share) for share, _ in self.reading.take_values("risks-in-words")), None)

    def _parameters(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """Return the parameters of a trained model: values, and lists of values to try."""
        vary = {
            match[1]: [tidy(float(value)) for value in re.findall(r"-?\d+(?:\.\d+)?", match[2])]
            for match in self.reading.take("vary", all_of_them=True)
        }
        values = {match[1]: tidy(float(match[2])) for match in self.reading.take("parameter", all_of_them=True)}
        return values, vary

    def _scaled(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return an argument of the question before, made twice or half as large."""
        factor = next((float(value) for value, _ in self.reading.take_values("twice")), None)
        names = (name for name, _ in self.reading.take_values("scaled") if isinstance(before.get(name), int | float))
        if factor is None or (name := next(names, "")) == "":
            return {}
        return {name: tidy(before[name] * factor)}

    def _other_currency(self) -> dict[str, Any]:
        bare = cues.pattern("number").search(self.reading.text)
        for currency, _ in self.reading.take_values("currencies"):
            return {**({"budget": tidy(number(bare[1], bare[2]))} if bare else {}), "currency": currency}
        return {}

    def _budget(self) -> dict[str, Any] | None:
        for currency, match in self.reading.take_values("money"):
            return {"budget": tidy(number(match[1], match[2])), "currency": currency}
        return None

