"""A run as one row of what may be learned from: its features and figures, before a target is chosen."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from leadline.core.hardware import Device
from leadline.core.jobs import JobState
from leadline.core.runs import Run, Scale, Value
from leadline.core.units import parse_bytes, parse_duration_s

DeviceOf = Callable[[str], Device | None]
"""Name of a device → its record in the catalog, or ``None`` for one that is not known."""

NODE = "node_"
"""Begins the name of every feature that says what the node is made of."""
RESOURCES = ("nodes", "cores", "gpus", "memory_bytes", "partition")
"""The features that say what was asked for, as a schedule's user names them; counts are of the whole job."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run; ``label`` names it in a sentence: ``run 0123456789ab``, ``line 7 of runs.csv``.

    ``features`` holds parameters, resources and the node's figures, and ``parameters`` names those that must be known
    of every run. ``metrics`` holds what was measured, with its unit in the name; what was not measured is absent.
    """

    id: str
    label: str
    application: str
    state: JobState
    scale: Scale
    features: dict[str, Value]
    metrics: dict[str, float]
    parameters: frozenset[str]
    started_at: str = ""
    limits: dict[str, float] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)


def run_records(
    runs: Iterable[Run],
    *,
    device_of: DeviceOf = lambda _: None,
    graph_features: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[RunRecord, ...]:
    """Turn runs of the history into records.

    ``graph_features`` maps the id of a run to the white-box figures of its op graph, where there is one.
    """
    graphs = graph_features or {}
    return tuple(_record(run, device_of, graphs.get(run.id, {})) for run in runs)


def application_name(run: Run) -> str:
    """Return the campaign that made a run, else the name of its job."""
    return run.tags.get("campaign") or run.job.name


def device_features(device: Device) -> dict[str, Value]:
    """Return the catalog's figures of a GPU as features; what it does not know is absent."""
    known = {
        "gpu_memory_capacity_bytes": device.memory_bytes,
        "gpu_bytes_per_s": device.memory_bytes_per_s,
        "gpu_float32_flops_per_s": device.peak_flops_per_s.get("float32"),
        "gpu_float16_flops_per_s": device.peak_flops_per_s.get("float16"),
        "gpu_units": device.compute_units,
    }
    return {NODE + name: value for name, value in known.items() if value}


def node_features(tags: Mapping[str, str], device_of: DeviceOf = lambda _: None) -> dict[str, Value]:
    """Return the features of a node from its tags (``node_cpu``, ``node_cores`` …), with its GPU's from the catalog."""
    found: dict[str, Value] = {name: number_or_text(value) for name, value in tags.items() if name.startswith(NODE)}
    device = device_of(tags["node_gpu"]) if "node_gpu" in tags else None
    return found | (device_features(device) if device else {})


def number_or_text(text: str) -> Value:
    """Read a cell: a whole number, a number (``nan`` and ``inf`` too), else the text itself."""
    if "_" in text:  # Python's own way of writing thousands, and nobody else's
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _record(run: Run, device_of: DeviceOf, graph: Mapping[str, float]) -> RunRecord:
    asked = run.job.resources
    tasks = asked.nodes * asked.tasks_per_node
    resources: dict[str, Value | None] = {
        "nodes": asked.nodes,
        "cores": None if asked.cores_per_task is None else asked.cores_per_task * tasks,
        "gpus": asked.gpus_per_node * asked.nodes,
        "memory_bytes": None if asked.memory_bytes_per_node is None else asked.memory_bytes_per_node * asked.nodes,
        "partition": run.job.partition,
    }
    tags = run.tags | ({"node_gpu": run.device} if run.device else {})
    if not asked.gpus_per_node:  # a GPU that the job does not have does not change it
        tags = {name: value for name, value in tags.items() if not name.startswith("node_gpu")}
    limits = {"elapsed_s": asked.walltime_s, "host_memory_bytes": asked.memory_bytes_per_node}
    return RunRecord(
        id=run.id,
        label=f"run {run.id}",
        application=application_name(run),
        state=run.state,
        scale=run.scale,
        features={
            **{name: value for name, value in resources.items() if value is not None},
            **node_features(tags, device_of),
            **graph,
            **run.parameters,
        },
        metrics={name: figure.value for name, figure in run.measured.items()},
        parameters=frozenset(run.parameters),
        started_at=run.started_at,
        limits={name: float(value) for name, value in limits.items() if value is not None},
    )


_UNITS = r"ms|s|secs?|m|mins?|h|hrs?|d|days?|[KMGT]i?B"
_WITH_UNIT = re.compile(rf"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>{_UNITS})", re.IGNORECASE)
_SPELLINGS = {"sec": "s", "secs": "s", "min": "m", "mins": "m", "hr": "h", "hrs": "h", "day": "d", "days": "d"}


def unit_of(cell: str) -> str | None:
    """Return the unit that a number carries (``s``, ``m``, ``gib`` …); ``None`` of a cell that is no such number."""
    match = _WITH_UNIT.fullmatch(cell)
    if match is None:
        return None
    unit = match["unit"].lower()
    return _SPELLINGS.get(unit, unit)


def base_unit(unit: str) -> str:
    """Return what ``in_base_unit`` counts in: ``s`` or ``bytes``."""
    return "bytes" if unit.endswith("b") else "s"


def in_base_unit(cell: str) -> float:
    """Return the seconds or the bytes that a cell with a unit says.

    Raises:
        ValueError: it has no unit.
    """
    match = _WITH_UNIT.fullmatch(cell)
    unit = unit_of(cell)
    if match is None or unit is None:
        raise ValueError(f"{cell!r} has no unit")
    written = match["number"] + unit
    return float(parse_bytes(written)) if base_unit(unit) == "bytes" else parse_duration_s(written)
