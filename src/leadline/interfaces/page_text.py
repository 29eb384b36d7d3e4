"""Text of the pages' values: times, sizes, costs and names that a stranger may have chosen."""

from collections.abc import Callable, Mapping
from datetime import datetime
from time import time as time_now
from typing import Any

import msgspec

from leadline.campaigns.budgets import format_amount
from leadline.core.campaigns import BudgetUnit
from leadline.core.fit import format_probability
from leadline.core.systems import Billing
from leadline.core.units import format_bytes, format_clock, format_count, format_duration, pluralize
from leadline.interfaces.tables import format_currency, format_device, format_energy
from leadline.training.model_card import SCALES, describe_refit, describe_training_data

Document = Mapping[str, Any]
UNKNOWN = "unknown"
QUANTITIES = {"elapsed_s": "time", "host_memory_bytes": "host memory", "gpu_memory_bytes": "GPU memory"}
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


def size_range(interval: Document | None) -> str:
    """Return the bounds of an interval of bytes."""
    return f"{format_bytes(interval['low'])} – {format_bytes(interval['high'])}" if interval else ""


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


def cost_range(interval: Document | None, currency: str | None) -> str:
    """Return the bounds of an interval of costs, without the long name of a site's unit."""
    unit = "USD" if currency == "USD" else None
    return f"{money(interval['low'], unit)} – {money(interval['high'], unit)}" if interval else ""


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
    """Return the hourly rates of a partition."""
    return UNKNOWN if billing is None else msgspec.convert(billing, Billing).price_text()


def limits(of_job: Document) -> str:
    """Return the scheduler's limits of one job in a partition; unknown ones are absent."""
    longest_s, memory_bytes = of_job["max_walltime_s"], of_job["min_memory_bytes"]
    texts = [f"at most {format_duration(longest_s)}"] if longest_s else []
    for unit in ("nodes", "cores", "GPUs"):
        least, most = of_job.get(f"min_{unit.lower()}"), of_job[f"max_{unit.lower()}"]
        if least is not None or most is not None:
            texts.append(f"{least or 1} or more {unit}" if most is None else f"{least or 1} to {most} {unit}")
    texts += [f"{format_bytes(memory_bytes)} or more"] if memory_bytes else []
    texts += [f"{of_job['max_submitted_jobs']} submitted jobs"] if of_job["max_submitted_jobs"] else []
    return ", ".join(texts) or UNKNOWN


def spent(usage: Document) -> str:
    """Return what a job has used up."""
    if usage["cost"] is not None:
        return money(usage["cost"], usage["currency"])
    return f"{format_duration(usage['node_s'])} of a node" if usage["node_s"] else ""


def clock(at: str) -> str:
    """Return a moment in local time, with its year if that is another one."""
    try:
        moment = datetime.fromisoformat(at).astimezone()
    except ValueError:
        return at
    this_year = moment.year == datetime.now(moment.tzinfo).year
    return moment.strftime("%b %d %H:%M" if this_year else "%Y-%m-%d %H:%M")


def energy(joules: float | None) -> str:
    """Return an energy."""
    return UNKNOWN if joules is None else format_energy(joules)


def ago(at: str | None) -> str:
    """Return how long ago a moment was."""
    return "never" if at is None else format_duration(max(time_now() - datetime.fromisoformat(at).timestamp(), 0.0))


def plain(text: str) -> str:
    """Return text that a stranger may have written, cut and without control characters; the template escapes it."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def heading(text: str) -> str:
    """Return text with a capital letter at its start."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Return a message as a sentence; empty without one."""
    return heading(text if text.endswith((".", "?", "!")) else f"{text}.") if text else ""


def value(measured: Document, name: str) -> float | None:
    """Return one measured value of a run; None if it was not measured."""
    return measured[name]["value"] if name in measured else None


def amount(spent_or_budget: float, unit: str) -> str:
    """Return an amount in the unit of a campaign's budget."""
    return format_amount(spent_or_budget, BudgetUnit(unit))


def parameter(setting: object) -> str:
    """Return the value of a campaign's parameter, which a stranger may have written."""
    return f"{setting:.4g}" if isinstance(setting, float) else plain(str(setting))


def quantity(name: str) -> str:
    """Return the name of a predicted quantity, such as ``elapsed_s``, in words."""
    return QUANTITIES.get(name, name)


def scale(name: str) -> str:
    """Return the name of a scale of runs."""
    return SCALES.get(name, name)


FILTERS: dict[str, Callable[..., Any]] = {
    "time": time, "range": range_, "size": size, "size_range": size_range, "bytes": bytes_, "seconds": seconds,
    "known": known, "rate": rate, "cost": cost, "cost_range": cost_range, "device": device, "request": request,
    "price": price, "limits": limits, "spent": spent, "clock": clock, "plain": plain, "heading": heading,
    "sentence": sentence, "value": value, "amount": amount, "parameter": parameter, "scale": scale,
    "quantity": quantity, "pluralize": pluralize, "energy": energy, "ago": ago, "money": money,
    "probability": format_probability, "refit": describe_refit, "training_data": describe_training_data,
}  # fmt: skip
