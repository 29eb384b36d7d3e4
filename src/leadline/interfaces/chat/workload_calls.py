"""Calls about workloads: estimate, fit and recommend."""

import re
from collections.abc import Mapping
from typing import Any

from leadline.interfaces.chat.language import tidy
from leadline.interfaces.chat.question import WORKLOAD_TOOLS, Question, ToolCall
from leadline.interfaces.chat.slots import read_samples

LIMITS = ("deadline_s", "budget", "currency", "risk")
"""Arguments that only some of the workload's tools have."""
KEPT = {"estimate": (), "fit": ("risk",), "recommend": LIMITS}


def workload_call(question: Question, tool: str) -> ToolCall | None:
    """Return a call about the workload that the question names, or about that of the question before."""
    if question.has_workload:
        return _call(question, tool, _arguments(question))
    if question.before is None or not question.follows(*WORKLOAD_TOOLS):
        return None
    before = question.before
    new = _changes(question, before)
    kept = {name: value for name, value in before.arguments.items() if _has(tool, name)}
    places = [place for place in kept.pop("on", ()) if not _is_unwanted(question, place)]
    if "on" in new and question.says("also") and not question.says("instead"):
        places += [place for place in new["on"] if place not in places]
    else:
        places = new.get("on", places)
    if "generate" in kept and "seq" in new and "seq" not in kept:
        new["generate"] = new.pop("seq")
    if new.get("phase") == kept.get("phase"):
        new.pop("phase", None)
    focus = next((name for name in reversed(new) if name != "currency"), "")
    return _call(question, tool, {**kept, **new, **({"on": places} if places else {})}, focus)


def _is_unwanted(question: Question, place: str) -> bool:
    """Tell whether the question leaves a place out, perhaps by the end of its name: ``forget the 4090``."""
    name = place.lower()
    return name in question.unwanted or name.split()[-1] in re.findall(r"\w+", question.unwanted)


def _changes(question: Question, before: ToolCall) -> dict[str, Any]:
    """Return the arguments that the question changes, also by a bare number or by words such as twice."""
    new = _arguments(question)
    new = {**_scaled(question, before.arguments), **new}
    has_budget = "budget" in before.arguments
    if has_budget and "budget" not in new:
        new |= _other_currency(question)
    bare = question.bare_number()
    if "samples" in new and "samples" not in before.arguments and before.focus == "batch":
        new["batch"] = new.pop("samples")
    focused = before.arguments.get(before.focus)
    if bare is not None and not new and isinstance(focused, int | float) and not isinstance(focused, bool):
        new[before.focus] = bare
    elif bare is not None and has_budget and "deadline_s" in new and "budget" not in new:
        new["budget"] = bare
    return new


def _has(tool: str, argument: str) -> bool:
    return argument not in LIMITS or argument in KEPT[tool]


def _call(question: Question, tool: str, arguments: Mapping[str, Any], focus: str = "") -> ToolCall:
    places = question.reading.places
    last = focus or max(places, key=places.__getitem__, default="") or ("budget" if "budget" in arguments else "")
    allowed = {name: value for name, value in arguments.items() if _has(tool, name)}
    return ToolCall(tool, allowed, last if last != "workload" else "", question.nodes or 0)


def _arguments(question: Question) -> dict[str, Any]:
    """Return the arguments of a workload's tools that the question says."""
    gpus, nodes = question.gpus()
    before = question.before
    if gpus is None and nodes and before is not None and before.nodes:
        gpus = before.arguments.get("gpus", 0) // before.nodes * nodes
    read_samples(question.reading)
    deadlines = [*question.spans, *(float(seconds) for seconds, _ in question.reading.take_values("deadlines"))]
    said: dict[str, Any] = {
        **question.reading.slots, "on": [name for name, _ in question.places], "gpus": gpus, "values": question.values,
        "vary": question.vary,
    }  # fmt: skip
    said["phase"] = "training" if question.trains else None
    if "generate" in said or (question.infers and not question.trains):
        said["phase"] = "inference"
    said |= {**question.budget, "deadline_s": deadlines[-1] if deadlines else None, "risk": question.risk}
    return {name: value for name, value in said.items() if value not in (None, [], {})}


def _scaled(question: Question, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return an argument of the question before, made twice or half as large."""
    factors = [float(value) for value, _ in question.reading.take_values("twice")]
    for name, _ in question.reading.take_values("scaled") if factors else ():
        if isinstance(before.get(name), int | float):
            return {name: tidy(before[name] * factors[0])}
    return {}


def _other_currency(question: Question) -> dict[str, Any]:
    bare = question.bare_number()
    for currency, _ in question.reading.take_values("currencies"):
        return {**({} if bare is None else {"budget": bare}), "currency": currency}
    return {}
