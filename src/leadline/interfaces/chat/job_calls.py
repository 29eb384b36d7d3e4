"""Calls about jobs, lists, systems, devices, models, campaigns and past runs."""

from typing import Any

from leadline.interfaces.chat import cues
from leadline.interfaces.chat.language import number
from leadline.interfaces.chat.question import JOB_TOOLS, WORKLOAD_TOOLS, Question, ToolCall
from leadline.interfaces.chat.slots import read_size

NAMED = {"campaigns": "name", "models": "name", "history": "run"}
"""Tool → its argument for one of what it lists."""


def submit_call(question: Question) -> ToolCall | None:
    """Return the order to submit a command, or the changed order of the question before."""
    before = dict(question.before.arguments) if question.before and question.follows("submit") else None
    if not question.command and (before is None or question.says("other-than-submit")):
        return None
    command = {"command": list(question.command)} if question.command else {}
    new = _submit_options(question)
    return ToolCall("submit", {**(before or {}), **command, **new}) if command or new else None


def _submit_options(question: Question) -> dict[str, Any]:
    reading, new = question.reading, dict[str, Any]()
    if question.places:
        new["on"] = [name for name, _ in question.places]
    for name, patterns in cues.by_value("submit-names").items():
        for match in filter(None, (pattern.search(question.text) for pattern in patterns)):
            new.setdefault(name, match[1].strip("\"'`.,"))
    for name, match in reading.take_values("submit-counts"):
        new.setdefault(name, int(number(match[1], match[2])))
    if (size := read_size(reading)) is not None:
        new["memory_bytes"] = size
    if question.spans:
        new["time_s"] = question.spans[-1]
    new |= {name: count for name, count in zip(("gpus", "nodes"), question.gpus(), strict=True) if count}
    return new | ({"resumes": True} if reading.says("resumes") else {})


def cancel_call(question: Question) -> ToolCall | None:
    """Return the order to cancel jobs."""
    if not question.says("cancel") or question.says("why") or question.has_workload:
        return None
    job = _job_before(question)
    if question.jobs:
        also = [job] if job and question.says("it", "also") else []
        return ToolCall("cancel", {"jobs": [*also, *question.jobs]})
    if question.says("all-jobs"):
        return ToolCall("cancel", {"all": True})
    return ToolCall("cancel", {"jobs": [job]}) if job and question.says("it") else None


def _job_before(question: Question) -> str:
    """Return the job that the question before was about."""
    if question.before is None or not question.follows(*JOB_TOOLS):
        return ""
    jobs = question.before.arguments.get("jobs", [])
    return question.before.arguments.get("job", "") or (jobs[0] if len(jobs) == 1 else "")


def job_call(question: Question) -> ToolCall | None:
    """Return a call about one job."""
    if question.has_workload or (question.follows(*WORKLOAD_TOOLS) and question.reading.slots):
        return None
    job = question.jobs[0] if question.jobs else _job_before(question)
    if job and question.says("logs"):
        return ToolCall("logs", {"job": job, **_log_options(question)})
    if job and question.says("why"):
        return ToolCall("explain", {"job": job})
    if (question.jobs and question.says("status")) or (job and question.says("status-of-it")):
        return ToolCall("jobs", {"job": job})
    return _job_again(question)


def _job_again(question: Question) -> ToolCall | None:
    """Return the call before for another job, or with other options."""
    before = question.before
    if before is None or not question.follows(*JOB_TOOLS):
        return None
    if before.tool == "logs" and not question.jobs and (options := _log_options(question)):
        return ToolCall("logs", {**before.arguments, **options})
    if not question.jobs or not question.says("and"):
        return None
    if before.tool == "cancel":
        also = before.arguments.get("jobs", []) if question.says("also") else []
        return ToolCall("cancel", {"jobs": [*also, *question.jobs]})
    return ToolCall(before.tool, {**before.arguments, "job": question.jobs[0]}) if "job" in before.arguments else None


def _log_options(question: Question) -> dict[str, int]:
    options: dict[str, int] = {}
    for name, match in question.reading.take_values("log-counts"):
        options.setdefault(name, int(number(match[1], match[2])))
    for count, _ in question.reading.take_values("ordinals"):
        options.setdefault("attempt", int(count))
    return options


def named_call(question: Question) -> ToolCall | None:
    """Return a call about campaigns, models or past runs."""
    if question.has_workload or (question.follows(*WORKLOAD_TOOLS) and question.reading.slots):
        return None
    if question.says("campaigns") and not question.says("not-campaigns"):
        return ToolCall("campaigns", _name(question, "campaign-name"))
    if question.says("models") or (question.says("model-card") and question.jobs):
        return ToolCall("models", _name(question, "model-name"))
    return _history_call(question) or _named_again(question)


def _history_call(question: Question) -> ToolCall | None:
    run = question.find("run-id")
    if run and not question.says("job-only"):
        return ToolCall("history", {"run": run})
    if question.says("history") and not question.says("not-history"):
        return ToolCall("history", question.limit())
    return None


def _named_again(question: Question) -> ToolCall | None:
    """Return the call before for another name, or with another limit."""
    if question.before is None or not question.follows(*NAMED) or not question.says("and"):
        return None
    tool = question.before.tool
    if question.jobs:
        return ToolCall(tool, {NAMED[tool]: question.jobs[0]})
    limit = question.limit() if tool == "history" else {}
    return ToolCall(tool, limit) if limit else None


def _name(question: Question, cue: str) -> dict[str, str]:
    name = question.jobs[0] if question.jobs else question.find(cue)
    return {"name": name} if name else {}


def list_call(question: Question) -> ToolCall | None:
    """Return a call for all jobs, systems or devices."""
    if question.has_workload or question.jobs or question.places:
        return None
    ended = {"all": True} if question.says("ended") else {}
    if question.says("list-jobs") and not question.says("not-jobs"):
        return ToolCall("jobs", {**ended, **question.limit()})
    before = question.before
    if before is not None and before.tool == "jobs" and "job" not in before.arguments:
        limit = question.limit()
        if ended or (limit and question.says("and")):
            return ToolCall("jobs", {**before.arguments, **ended, **limit})
    if not question.budget and not question.says("not-systems"):
        tools = [tool for tool in ("systems", "devices") if question.says(f"list-{tool}")]
        return ToolCall(tools[0], {}) if tools else None
    return None


def show_call(question: Question) -> ToolCall | None:
    """Return a call for one system or device."""
    if question.has_workload or not question.places or question.follows(*WORKLOAD_TOOLS):
        return None
    systems = [name for name, kind in question.places if kind == "system"]
    if systems and question.says("show-system"):
        return ToolCall("systems", {"name": systems[0]})
    name, kind = question.places[0]
    tool = {"device": "devices", "system": "systems"}.get(kind, "")
    if tool == "devices" and len(question.places) == 1 and question.says("show-device"):
        return ToolCall(tool, {"name": name})
    follows = question.follows("systems", "devices") and question.says("and")
    return ToolCall(tool, {"name": name}) if tool and follows else None
