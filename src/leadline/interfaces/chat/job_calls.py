"""Arguments of the tools for jobs, systems, devices, models, campaigns, pipelines and past runs."""

from typing import Any

from leadline.interfaces.chat import cues
from leadline.interfaces.chat.language import number
from leadline.interfaces.chat.question import JOB_TOOLS, Question
from leadline.interfaces.chat.slots import read_size

Arguments = dict[str, Any]


def submit_arguments(question: Question) -> Arguments | None:
    """Return the order to submit a command, or the changed order of the question before."""
    before = dict(question.before.arguments) if question.before and question.follows("submit") else {}
    command = {"command": list(question.command)} if question.command else {}
    new = {**command, **_submit_options(question)}
    return {**before, **new} if new and (command or before) else None


def _submit_options(question: Question) -> Arguments:
    reading, new = question.reading, Arguments()
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


def cancel_arguments(question: Question) -> Arguments | None:
    """Return the jobs to cancel: named ones, all, or the one of the question before."""
    job = _job_before(question)
    if question.jobs:
        before = question.before.arguments.get("jobs", []) if question.before and question.follows("cancel") else []
        also = [job] if job and question.says("it", "also") else before if question.says("also") else []
        return {"jobs": [*also, *(name for name in question.jobs if name not in also)]}
    if question.says("all-jobs"):
        return {"all": True}
    return {"jobs": [job]} if job else None


def _job_before(question: Question) -> str:
    """Return the job that the question before was about."""
    if question.before is None or not question.follows(*JOB_TOOLS):
        return ""
    jobs = question.before.arguments.get("jobs", [])
    return question.before.arguments.get("job", "") or (jobs[0] if len(jobs) == 1 else "")


def jobs_arguments(question: Question) -> Arguments:
    """Return one job, or which jobs to list."""
    if question.jobs:
        return {"job": question.jobs[0]}
    lists = question.says("list-jobs") or question.says("ended") or not _job_before(question)
    before = question.before.arguments if question.before and question.follows("jobs") else {}
    if not lists:
        return {"job": _job_before(question)}
    kept = {} if "job" in before or question.says("list-jobs") else before
    return {**kept, **({"all": True} if question.says("ended") else {}), **question.limit()}


def logs_arguments(question: Question) -> Arguments | None:
    """Return the job, and how much of which attempt."""
    options: dict[str, int] = {}
    for name, match in question.reading.take_values("log-counts"):
        options.setdefault(name, int(number(match[1], match[2])))
    for count, _ in question.reading.take_values("ordinals"):
        options.setdefault("attempt", int(count))
    job = question.jobs[0] if question.jobs else _job_before(question)
    before = question.before.arguments if question.before and question.follows("logs") else {}
    return {**before, "job": job, **options} if job else None


def explain_arguments(question: Question) -> Arguments | None:
    """Return the job to explain."""
    job = question.jobs[0] if question.jobs else _job_before(question)
    return {"job": job} if job else None


def history_arguments(question: Question) -> Arguments:
    """Return one past run, or how many to list."""
    run = question.find("run-id") or (question.jobs[0] if question.jobs else "")
    return {"run": run} if run else question.limit() or _bare_limit(question)


def _bare_limit(question: Question) -> Arguments:
    bare = question.bare_number() if question.follows("history") else None
    return {} if bare is None else {"limit": bare}


def named_arguments(question: Question, cue: str) -> Arguments:
    """Return the name of a model, campaign or pipeline, if the question has one."""
    name = question.jobs[0] if question.jobs else question.find(cue)
    return {"name": name} if name else {}


def place_arguments(question: Question, kind: str) -> Arguments:
    """Return the first system or device that the question names, if any."""
    names = [name for name, of in question.places if of == kind]
    return {"name": names[0]} if names else {}
