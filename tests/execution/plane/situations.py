"""Situations of a job, said shortly."""

from dataclasses import replace

from leadline.core.estimate import Interval
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Alternative, Attempt, Job, Place, Policy, Situation
from leadline.core.units import GIB, HOUR_S

HERE, THERE, AWAY = Place("here", "short"), Place("here", "long"), Place("away")
POLICY = Policy((HERE, THERE, AWAY), may_restart=True)
NOW_S = 1767607200.0  # 2026-01-05T10:00:00Z
ASKED = ResourceSpec(memory_bytes_per_node=8 * GIB, walltime_s=float(HOUR_S))


def about(point, share=0.1):
    """An interval at 90 % that reaches ``share`` to both sides."""
    return Interval(point, point * (1 - share), point * (1 + share))


def attempt(number, state, **more):
    more.setdefault("resources", ASKED)
    more.setdefault("place", HERE)
    return Attempt(f"k-{number}", "k", number, state=JobState[state], **more)


def situation(state, *, policy=POLICY, before=(), others=(), job=None, limit_s=None, memory=None, node=None, **more):
    """A job whose newest attempt is in ``state``, after ``before`` (states) and beside ``others`` (attempts)."""
    asked = ASKED if limit_s is None else replace(ASKED, walltime_s=float(limit_s))
    asked = asked if memory is None else replace(asked, memory_bytes_per_node=memory)
    earlier = tuple(attempt(at + 1, one) for at, one in enumerate(before))
    this = attempt(len(before) + 1, state, resources=asked, node=node, withdrawn=more.pop("withdrawn", False))
    this = replace(this, **more.pop("attempt", {}))
    made = Job("k", JobSpec("train", ("true",), asked), policy, attempts=(*earlier, this, *others), **(job or {}))
    return Situation(made, this, NOW_S, **more)


def other(place=THERE, wait_s=60.0, run_s=2000.0, limit_s=4 * HOUR_S, memory=8 * GIB, **more):
    """A place where the job could go."""
    asked = replace(ASKED, walltime_s=float(limit_s), memory_bytes_per_node=memory)
    wait = about(wait_s, 0.5) if wait_s is not None else None
    return Alternative(place, asked, wait, about(run_s) if run_s is not None else None, **more)
