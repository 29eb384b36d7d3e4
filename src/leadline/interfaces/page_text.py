"""Text of the pages' values: times, sizes, costs and names that a stranger may have chosen."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from leadline.core.units import format_bytes, format_clock, format_count, format_duration
from leadline.interfaces.tables import format_currency, format_device, format_figures

Document = Mapping[str, Any]
UNKNOWN = "unknown"
LONGEST = 300
"""Longest shown name or reason of a job."""


def time(interval: Document | None) -> str:
    """Return the most likely time of an interval."""
    return seconds(interval["point"]) if interval else UNKNOWN


def range_(interval: Document | None) -> str:
    """Return the bounds of an interval of time."""
    return f"{format_duration(interval['low'])} – {format_duration(interval['high'])}" if interval else ""


def size(interval: Document | None) -> str:
    """Return the most likely size of an interval."""
    return bytes_(interval["point"]) if interval else UNKNOWN


def bytes_(count: float | None) -> str:
    """Return a number of bytes."""
    return UNKNOWN if count is None else format_bytes(count)


def seconds(span_s: float | None) -> str:
    """Return a span of time."""
    return UNKNOWN if span_s is None else format_duration(span_s)


def known(value: object) -> str:
    """Return a value, which may be unknown."""
    return UNKNOWN if value is None else str(value)


def rate(value: float | None, unit: str) -> str:
    """Return a rate with its prefix and unit."""
    return UNKNOWN if value is None else f"{format_count(value)}{unit}"


def money(amount: float | None, currency: str | None) -> str:
    """Return an amount with its currency."""
    return UNKNOWN if amount is None else format_currency(amount, currency)


def cost(estimate: Document) -> str:
    """Return the cost of an estimate."""
    return money((estimate["cost"] or {}).get("point"), estimate["currency"])


def device(estimate: Document) -> str:
    """Return the device of an estimate, with how many of them if there are several."""
    target = estimate["target"]
    return format_device(target["device"], target["gpus"])


def request(resources: Document) -> str:
    """Return what an option requests from its scheduler."""
    nodes, gpus, walltime_s = resources["nodes"], resources["gpus_per_node"], resources["walltime_s"]
    parts = [f"{nodes} node{'s' if nodes > 1 else ''}"]
    if gpus:
        parts.append(
            f"{gpus} GPU{'s' if gpus > 1 else ''} each" if nodes > 1 else f"{gpus} GPU{'s' if gpus > 1 else ''}"
        )
    if resources["memory_bytes_per_node"]:
        parts.append(format_bytes(resources["memory_bytes_per_node"]))
    return ", ".join([*parts, format_clock(walltime_s)] if walltime_s else parts)


def price(billing: Document | None) -> str:
    """Return the rates of a partition."""
    if billing is None:
        return UNKNOWN
    if billing["free"]:
        return "free"
    rates = {"core_hour": "core-hour", "gpu_hour": "GPU-hour", "node_hour": "node-hour", "gib_hour": "GiB-hour"}
    parts = [
        f"{money(billing[name] * billing['charge_factor'], billing['currency'])} a {unit}"
        for name, unit in rates.items() if billing[name] is not None
    ]  # fmt: skip
    return ", ".join(parts) or UNKNOWN


def spent(usage: Document) -> str:
    """Return what a job has used up."""
    if usage["cost"] is not None:
        return money(usage["cost"], usage["currency"])
    return f"{format_duration(usage['node_s'])} of a node" if usage["node_s"] else ""


def clock(at: str) -> str:
    """Return a moment in local time."""
    try:
        return datetime.fromisoformat(at).astimezone().strftime("%b %d %H:%M")
    except ValueError:
        return at


def plain(text: str) -> str:
    """Return text that a stranger may have written, cut and without control characters; the template escapes it."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def measured(name: str, form: Callable[[float | None], str]) -> Callable[[Document], str]:
    """Return a filter of one measured quantity."""
    return lambda values: form(values[name]["value"] if name in values else None)


def campaign_line(campaign: Document) -> str:
    """Return progress and money of a campaign."""
    totals = ((name.replace("_", " "), value) for name, value in campaign["tally"].items())
    return ", ".join(
        f"{name}: {format_figures(value) if isinstance(value, int | float) else value}"
        for name, value in totals if value not in (None, {}, [])
    )  # fmt: skip


def front_points(options: Sequence[Document], currency: str) -> list[dict[str, Any]]:
    """Return time and cost of the options in one currency, the fastest first."""
    points = [
        {"row": row, "time": option["estimate"]["elapsed_s"]["point"], "cost": option["estimate"]["cost"]["point"],
         "front": option["on_front"]}
        for row, option in enumerate(options, 1)
        if option["estimate"]["cost"] and option["estimate"]["elapsed_s"] and option["estimate"]["currency"] == currency
    ]  # fmt: skip
    shown = (point for point in points if point["cost"] > 0 and math.isfinite(point["time"]))
    return sorted(shown, key=itemgetter("time"))


def forecast_errors(runs: Sequence[Document]) -> dict[str, Any]:
    """Return the error of the forecast of each run in turn, which is the learning curve of a campaign."""
    errors = [100 * abs(run["forecast_s"] / run["elapsed_s"] - 1) for run in runs if run["elapsed_s"]]
    return {"x": list(range(1, len(errors) + 1)), "y": errors, "x_label": "run", "y_label": "error of the forecast, %"}


FILTERS: dict[str, Callable[..., Any]] = {
    "time": time, "range": range_, "size": size, "bytes": bytes_, "seconds": seconds, "known": known, "rate": rate,
    "cost": cost, "device": device, "request": request, "price": price, "spent": spent, "clock": clock, "plain": plain,
    "measured_s": measured("elapsed_s", seconds), "measured_bytes": measured("host_memory_bytes", bytes_),
    "campaign_line": campaign_line, "forecast_errors": forecast_errors,
}  # fmt: skip
