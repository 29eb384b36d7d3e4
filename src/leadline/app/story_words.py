"""What an event of the plane's journal says, in a sentence, and its figures in others: pure, units written out."""

from collections.abc import Callable, Mapping
from datetime import datetime

from leadline.core.jobs import ResourceSpec
from leadline.core.plane import Action, Event, Kind, Policy
from leadline.core.units import HOUR_S, format_bytes, format_duration

Said = Mapping[str, float | int | str | bool | None]

_DONE = {
    Action.KEEP: "left alone",
    Action.SHRINK: "given a lower limit",
    Action.EXTEND: "a longer limit asked for",
    Action.CHECKPOINT: "made to write a checkpoint and to go on in another attempt",
    Action.RESUBMIT: "submitted anew",
    Action.MOVE: "moved",
    Action.BEGIN: "let begin",
    Action.WITHDRAW: "withdrawn",
    Action.GIVE_UP: "given up",
    Action.FINISH: "finished",
}
_LABELS = {
    "elapsed_s": "ran so far",
    "limit_s": "its limit",
    "total_s": "expected to take in all",
    "late": "probability to reach the limit",
    "remaining_wait_s": "expected to wait another",
    "spent_node_s": "all attempts took",
    "spent_cost": "all attempts cost",
    "walltime_s": "limit",
    "memory_bytes_per_node": "memory a node",
    "lasted_at_least_s": "lasted at least",
    "needed_s": "limit it needs",
    "needed_at_least_bytes": "needs at least",
    "needed_bytes": "memory it needs",
    "affordable_s": "can be paid for",
    "here_s": "expected until its end here",
    "there_s": "expected until its end there",
    "avoid_node": "node to be avoided",
    "attempt": "attempts so far",
    "gpu_memory_bytes": "GPU memory",
    "host_memory_bytes": "memory",
    "cpu_s": "CPU time",
}
_HIDDEN = ("action", "why", "place", "state", "reason", "node")
"""Stand in the sentence itself."""


_REPORTED = ("host_memory_bytes", "gpu_memory_bytes", "gpu_utilisation", "cpu_utilisation")
_SHARES = ("late", "risk", "gpu_utilisation", "cpu_utilisation")
_UNITS: tuple[tuple[Callable[[str], bool], Callable[[float], str]], ...] = (
    (lambda name: name.endswith("node_s"), lambda value: f"{value / HOUR_S:.3g} node-hours"),
    (lambda name: name.endswith("_s"), lambda value: format_duration(value) if value > 0 else "0 s"),
    (lambda name: "_bytes" in name, format_bytes),
    (lambda name: name in _SHARES, lambda value: f"{100 * value:.2g} %"),
)
"""Whether a name tells of a unit, and how it is written."""


def sentence(event: Event) -> tuple[str, tuple[str, ...]]:
    """Return what an event says, and its evidence, as ``ran so far: 40m 00s``."""
    says = _SAYS[event.kind](event.said)
    if event.kind not in (Kind.DECISION, Kind.NOTED, Kind.LEARNED):
        return says, ()
    return says, figures(event.said)


def figures(said: Said) -> tuple[str, ...]:
    """Return every figure with its name and unit; a range stands with its point, the cause of an end first."""
    found = []
    for name, value in said.items():
        if name in _HIDDEN or value is None or name.endswith(("_low_s", "_high_s", "_low_bytes", "_high_bytes")):
            continue
        stem, _, unit = name.rpartition("_")
        low, high = said.get(f"{stem}_low_{unit}"), said.get(f"{stem}_high_{unit}")
        ends = [f"{side} {written(name, one)}" for side, one in (("from", low), ("to", high)) if one is not None]
        shown = " ".join([written(name, value), *ends])
        found.append(f"{_LABELS.get(name, _plain(name))}: {shown}")
    return tuple(found)


def written(name: str, value: float | str | bool | None) -> str:
    """Return a figure as people write it, by the unit in its name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return value or "not known"
    return next((write(value) for holds, write in _UNITS if holds(name)), f"{value:g}")


def asked_words(asked: ResourceSpec) -> str:
    """Return what is asked for: ``2 nodes, 8 cores, 1 GPU a node, 16.0 GiB a node, at most 2h 00m``."""
    parts = [f"{asked.nodes} node{'s' if asked.nodes > 1 else ''}"]
    if asked.tasks_per_node > 1:
        parts.append(f"{asked.tasks_per_node} tasks a node")
    if asked.cores_per_task:
        parts.append(f"{asked.cores_per_task} core{'s' if asked.cores_per_task > 1 else ''} a task")
    if asked.gpus_per_node:
        parts.append(f"{asked.gpus_per_node} GPU{'s' if asked.gpus_per_node > 1 else ''} a node")
    if asked.memory_bytes_per_node:
        parts.append(f"{format_bytes(asked.memory_bytes_per_node)} a node")
    parts.append(f"at most {format_duration(asked.walltime_s)}" if asked.walltime_s else "no limit of time named")
    return ", ".join(parts)


def bounds_words(policy: Policy) -> str:
    """Return what the plane may do: ``up to 4 attempts; a limit is too low with at most 5 %``."""
    parts = [f"up to {policy.attempts} attempt{'s' if policy.attempts > 1 else ''}"]
    parts += [f"{policy.node_s / HOUR_S:.3g} node-hours in all"] if policy.node_s is not None else []
    parts += [f"a cost of {policy.cost:g} in all"] if policy.cost is not None else []
    parts.append(f"limits at a risk of {policy.risk:.0%}" if policy.resizes else "its request stays as it is")
    parts += ["it goes on from its checkpoint"] if policy.resumes else []
    if policy.checkpoint_signal:
        parts.append(f"{policy.checkpoint_signal} {format_duration(policy.checkpoint_s)} before a limit")
    parts += [f"its folder {policy.checkpoint_folder} goes along"] if policy.checkpoint_folder else []
    parts += [] if policy.measured else ["not measured"]
    return "; ".join(parts)


def local_time(at: str, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a moment in ISO 8601 as the clocks here show it."""
    return datetime.fromisoformat(at).astimezone().strftime(form)


def _handed_over(_: Said) -> str:
    return "handed over"


def _noted(said: Said) -> str:
    why = f": {said['why']}" if said.get("why") else ""
    return f"to be submitted at {said.get('place')}{why}"


def _submitted(said: Said) -> str:
    again = ", found there after its answer had been lost" if said.get("found_again") else ""
    return f"taken by the scheduler as {said.get('id')}{again}"


def _state(said: Said) -> str:
    state, reason, node = said.get("state"), said.get("reason"), said.get("node")
    if limit := said.get("walltime_s"):
        return f"its limit is {written('walltime_s', limit)} now"
    if state == "PENDING":
        return f"waits ({reason})" if reason else "waits"
    if state == "RUNNING":
        return f"runs on {node}" if node else "runs"
    return f"ended as {state}{f': {reason}' if reason else ''}"


def _progress(said: Said) -> str:
    total = said.get("total")
    parts = []
    for name in ("epochs", "steps"):
        if (count := said.get(name)) is not None:
            counts_units = total is not None and (name == "steps" or "steps" not in said)
            unit = name.removesuffix("s") if count == 1 else name
            parts.append(f"{count} of {total} {name}" if counts_units else f"{count} {unit}")
    if "unit_s" in said:
        parts.append(f"{written('unit_s', said['unit_s'])} each")
    more = [name for name in _REPORTED if said.get(name) is not None]
    parts += [f"{_LABELS.get(name, _plain(name))} {written(name, said[name])}" for name in more]
    after = f" after {written('elapsed_s', said['elapsed_s'])}" if said.get("elapsed_s") else ""
    return f"reports{after}: {', '.join(parts) or 'nothing of its progress'}"


def _decision(said: Said) -> str:
    action = said.get("action")
    done = _DONE[Action(action)] if action in set(Action) else str(action)
    to = f" to {said['place']}" if said.get("place") and action == Action.MOVE else ""
    return f"{done}{to}: {said.get('why')}" if said.get("why") else f"{done}{to}"


def _fault(said: Said) -> str:
    why = said.get("why") or "no reason was given"
    if said.get("changed"):
        return f"{said['changed']} was changed: {why}"
    if said.get("system"):
        return f"{said['system']} does not answer: {why}"
    if said.get("asked"):
        return f"the scheduler refused to {said['asked']} its limit: {why}"
    return f"{said['place']} did not take it: {why}" if said.get("place") else f"refused: {why}"


def _poll(said: Said) -> str:
    return f"{said.get('system')} answers again"


def _cancel(_: Said) -> str:
    return "taken back by its user"


def _settled(said: Said) -> str:
    why = said.get("why")
    return f"done with it, {said.get('state')}{f': {why}' if why else ''}"


def _learned(said: Said) -> str:
    if said.get("failed"):
        return str(said.get("why"))
    return f"learned: {said.get('why') or 'its run entered the history'}"


def _staged(said: Said) -> str:
    there = f"brought from {said.get('from')} to {said.get('to')}"
    if not said.get("moved_bytes"):
        return f"no checkpoint had to be {there}"
    took = f" in {written('elapsed_s', said['elapsed_s'])}" if said.get("elapsed_s") else ""
    return f"its checkpoint was {there}: {written('moved_bytes', said['moved_bytes'])}{took}"


def _plain(name: str) -> str:
    for unit in ("_node_s", "_bytes", "_s"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


_SAYS = {
    Kind.HANDED_OVER: _handed_over,
    Kind.NOTED: _noted,
    Kind.STAGED: _staged,
    Kind.SUBMITTED: _submitted,
    Kind.STATE: _state,
    Kind.PROGRESS: _progress,
    Kind.POLL: _poll,
    Kind.DECISION: _decision,
    Kind.FAULT: _fault,
    Kind.CANCEL: _cancel,
    Kind.SETTLED: _settled,
    Kind.LEARNED: _learned,
}
