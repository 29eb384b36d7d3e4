"""The series of the pages' plots, from the documents of the tools."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import fmean, median
from typing import Any

from leadline.app.jobs.history import compare_run
from leadline.core.jobs import JobState
from leadline.core.runs import Run

Document = Mapping[str, Any]
RECENT = 5
"""Runs of the moving average of a learning curve."""


def front_points(options: Sequence[Document], currency: str) -> list[dict[str, Any]]:
    """Return time and cost of the options that cost something in one currency, the fastest first.

    ``row`` is the option's number, from 1; ``front`` is true if no other option is better in both.
    """
    points = [
        {"row": row, "name": f"{option['system']}:{option['partition']}", "front": option["on_front"],
         "time": option["estimate"]["elapsed_s"]["point"], "cost": option["estimate"]["cost"]["point"]}
        for row, option in enumerate(options, 1)
        if option["estimate"]["cost"] and option["estimate"]["elapsed_s"] and option["estimate"]["currency"] == currency
    ]  # fmt: skip
    drawn = [point for point in points if point["cost"] > 0 and math.isfinite(point["time"])]
    return sorted(drawn, key=lambda point: point["time"])


def memory_series(report: Document) -> dict[str, Any] | None:
    """Return the memory of a GPU over one step by category, and its capacity in bytes; None without a timeline."""
    moments: Sequence[Document] = report["moments"]
    if not moments:
        return None
    names = sorted({name for moment in moments for name, held in moment["held_bytes"].items() if held})
    return {
        "share": [moment["share"] for moment in moments],
        "held": {name: [moment["held_bytes"].get(name, 0) for moment in moments] for name in names},
        "reserved": [moment["reserved_bytes"] for moment in moments],
        "capacity": next((check["there_bytes"] for check in report["checks"] if check["kind"] == "GPU"), None),
        "peak": max(moment["reserved_bytes"] for moment in moments),
    }


def predicted_ends(log: Document) -> dict[str, list[float]] | None:
    """Return the predicted end at each decision about the newest attempt, in seconds since 1970, the oldest first.

    None below two decisions. ``log`` is the whole event log: a short one leaves decisions out.
    """
    attempts: Sequence[Document] = log["job"]["attempts"]
    if not attempts or attempts[-1]["started_at"] is None:
        return None
    newest, began_s = attempts[-1]["number"], _epoch_s(attempts[-1]["started_at"])
    events = [event for event in log["told"] if event["attempt"] == newest and "total_low_s" in event["said"]]
    if len(events) < 2:
        return None
    bounds = {"point": "total_s", "low": "total_low_s", "high": "total_high_s"}
    return {
        "at": [_epoch_s(event["at"]) for event in events],
        **{key: [began_s + event["said"][name] for event in events] for key, name in bounds.items()},
    }


def learning_curve(runs: Sequence[Document]) -> dict[str, list[float]] | None:
    """Return the error of the forecast of each completed run in percent, and its moving average; None below two."""
    completed = [run for run in runs if run["state"] == "COMPLETED" and run["forecast_s"] and run["elapsed_s"]]
    errors = [100 * abs(run["forecast_s"] / run["elapsed_s"] - 1) for run in completed]
    if len(errors) < 2:
        return None
    recent = [fmean(errors[max(0, end - RECENT) : end]) for end in range(1, len(errors) + 1)]
    return {"run": [float(number) for number in range(1, len(errors) + 1)], "error": errors, "recent": recent}


def measured_points(runs: Iterable[Run], quantity: str) -> dict[str, Any] | None:
    """Return predicted against measured values of completed runs, and the share within the interval; None below two.

    The values are in seconds or bytes, as the name of the quantity ends.
    """
    pairs = [(comparison.measured, comparison.predicted.point, comparison.within)
             for run in runs if run.state is JobState.COMPLETED for comparison in compare_run(run)
             if comparison.quantity == quantity and comparison.error is not None
             and comparison.measured and comparison.predicted and comparison.predicted.point > 0]  # fmt: skip
    if len(pairs) < 2:
        return None
    measured, predicted, within = zip(*sorted(pairs), strict=True)
    return {"quantity": quantity, "measured": measured, "predicted": predicted, "within": fmean(within)}


def run_points(runs: Sequence[Document], stage: str, quantity: str) -> dict[str, Any] | None:
    """Return predicted against measured values of a stage's completed runs; None below two.

    A prediction of memory is the recommended request, so it has no interval.
    """
    completed = [run for run in runs if run["stage"] == stage and run["state"] == "COMPLETED"]
    if quantity == "elapsed_s":
        rows = [(run["elapsed_s"], run["predicted_s"]["point"],
                 run["predicted_s"]["low"] <= run["elapsed_s"] <= run["predicted_s"]["high"])
                for run in completed if run["elapsed_s"] and run["predicted_s"]]  # fmt: skip
    elif quantity == "host_memory_bytes":
        rows = [(run["memory_bytes"], run["recommended_bytes"], run["memory_bytes"] <= run["recommended_bytes"])
                for run in completed if run["memory_bytes"] and run["recommended_bytes"]]  # fmt: skip
    else:
        return None
    if len(rows) < 2:
        return None
    measured, predicted, within = zip(*sorted(rows), strict=True)
    errors = [abs(point / value - 1) for value, point, _ in rows]
    return {"quantity": quantity, "measured": measured, "predicted": predicted, "within": fmean(within),
            "error": median(errors)}  # fmt: skip


def metric_series(metric: Document) -> dict[str, list[float]]:
    """Return a metric over time, in seconds since 1970, in order of time."""
    pairs = sorted((_epoch_s(at), value) for at, value in zip(metric["at"], metric["values"], strict=True))
    return {"at": [at for at, _ in pairs], "value": [value for _, value in pairs]}


def median_shares(runs: Sequence[Document]) -> dict[str, float]:
    """Return the median of used ÷ asked over the runs that ended well: of ``time`` and ``memory``, where known."""
    asked = {"time": ("elapsed_s", "walltime_s"), "memory": ("host_memory_bytes", "memory_bytes_per_node")}
    completed = [run for run in runs if run["state"] == JobState.COMPLETED]
    shares = {
        noun: [run["measured"][used]["value"] / limit for run in completed
               if used in run["measured"] and (limit := run["job"]["resources"][name])]
        for noun, (used, name) in asked.items()
    }  # fmt: skip
    return {noun: median(values) for noun, values in shares.items() if values}


def _epoch_s(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
