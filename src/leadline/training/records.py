"""A run as a row of training data: its features and metrics, before a target is chosen."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import field

from leadline.core.frozen import Frozen
from leadline.core.hardware import Device
from leadline.core.jobs import JobState
from leadline.core.runs import Run, Scale, Value
from leadline.core.units import parse_bytes, parse_duration_s

Progress = Callable[[str, int, int], None]
"""Called with the current task, its number, and the number of tasks."""
DeviceOf = Callable[[str], Device | None]
"""Name of a device to its catalog entry, or ``None`` for an unknown device."""

COLUMNS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "columns.toml").read_text(encoding="utf-8"))
NODE = "node_"
"""Prefix of the features that describe the node's hardware."""
RESOURCES = ("nodes", "cores", "gpus", "memory_bytes", "partition")
"""Features that describe the requested resources; counts are of the whole job."""
MOST_DIGITS = 300
_UNITS = r"ms|s|secs?|m|mins?|h|hrs?|d|days?|[KMGT]i?B"
_WITH_UNIT = re.compile(rf"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>{_UNITS})", re.IGNORECASE)
_SPELLINGS = {"sec": "s", "secs": "s", "min": "m", "mins": "m", "hr": "h", "hrs": "h", "day": "d", "days": "d"}


class RunRecord(Frozen):
    """One run."""

    id: str
    label: str  # name in messages, such as ``run 0123456789ab`` or ``line 7 of runs.csv``
    application: str
    state: JobState
    scale: Scale
    features: dict[str, Value]  # parameters, resources and the node's properties
    metrics: dict[str, float]  # measured values by name, with the unit in the name; unmeasured ones are absent
    parameters: frozenset[str]  # names of the features that every run must have
    started_at: str = ""
    limits: dict[str, float] = field(default_factory=dict)  # requested limits by metric
    units: dict[str, str] = field(default_factory=dict)  # base unit of each column that was written with units


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How to train; without ``targets``, the walltime and each kind of memory that was measured.

    ``jobs`` counts processes, ``None`` for one per core.
    """

    targets: tuple[str, ...] = ()
    policy: str = "mape"
    scale_features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    seed: int = 0
    jobs: int | None = 1


def run_records(
    runs: Iterable[Run],
    *,
    device_of: DeviceOf = lambda _: None,
    graph_features: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[RunRecord, ...]:
    """Return records of runs from the history; ``graph_features`` maps a run's id to the features of its op graph."""
    return tuple(_record(run, device_of, (graph_features or {}).get(run.id, {})) for run in runs)


def application_name(run: Run) -> str:
    """Return the campaign of a run, or the name of its job without one."""
    return run.tags.get("campaign") or run.job.name


def device_features(device: Device) -> dict[str, Value]:
    """Return the specifications of a GPU as features; unknown ones are absent."""
    specs = {
        "gpu_memory_capacity_bytes": device.memory_bytes,
        "gpu_bytes_per_s": device.memory_bytes_per_s,
        "gpu_float32_flops_per_s": device.peak_flops_per_s.get("float32"),
        "gpu_float16_flops_per_s": device.peak_flops_per_s.get("float16"),
        "gpu_units": device.compute_units,
    }
    return {NODE + name: value for name, value in specs.items() if value}


def node_features(tags: Mapping[str, str], device_of: DeviceOf = lambda _: None) -> dict[str, Value]:
    """Return the features of a node from its tags (``node_cpu``, ``node_cores`` …) and its GPU's specifications."""
    features: dict[str, Value] = {name: number_or_text(value) for name, value in tags.items() if name.startswith(NODE)}
    device = device_of(tags["node_gpu"]) if "node_gpu" in tags else None
    return features | (device_features(device) if device else {})


def number_or_text(text: str) -> Value:
    """Return a cell as a whole number, a number (including ``nan`` and ``inf``), or the text itself."""
    if "_" in text:  # int() accepts 1_000, but a name such as 2024_01 is a text
        return text
    # a whole number of more digits than a float holds is infinite
    for kind in (int, float) if len(text) <= MOST_DIGITS else (float,):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _record(run: Run, device_of: DeviceOf, graph: Mapping[str, float]) -> RunRecord:
    request = run.job.resources
    tasks, memory = request.nodes * request.tasks_per_node, request.memory_bytes_per_node
    resources: dict[str, Value | None] = {
        "nodes": request.nodes,
        "cores": None if request.cores_per_task is None else request.cores_per_task * tasks,
        "gpus": request.gpus_per_node * request.nodes,
        "memory_bytes": None if memory is None else memory * request.nodes,
        "partition": run.job.partition,
    }
    tags = run.tags | ({"node_gpu": run.device} if run.device else {})
    if not request.gpus_per_node:
        # The node's GPU does not affect a job that did not request it.
        tags = {name: value for name, value in tags.items() if not name.startswith("node_gpu")}
    limits = {"elapsed_s": request.walltime_s, "host_memory_bytes": memory}
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
        metrics={name: measurement.value for name, measurement in run.measured.items()},
        parameters=frozenset(run.parameters),
        started_at=run.started_at,
        limits={name: float(value) for name, value in limits.items() if value is not None},
    )


def unit_of(cell: str) -> str | None:
    """Return the unit of a number (``s``, ``m``, ``gib`` …); ``None`` for a text without a number and unit."""
    match = _WITH_UNIT.fullmatch(cell)
    if match is None:
        return None
    unit = match["unit"].lower()
    return _SPELLINGS.get(unit, unit)


def base_unit(unit: str) -> str:
    """Return the unit that ``in_base_unit`` converts to: ``s`` or ``bytes``."""
    return "bytes" if unit.endswith("b") else "s"


def in_base_unit(cell: str) -> float:
    """Return a number with a unit in seconds or bytes.

    Raises:
        ValueError: the cell has no unit.
    """
    match, unit = _WITH_UNIT.fullmatch(cell), unit_of(cell)
    if match is None or unit is None:
        raise ValueError(f"{cell!r} has no unit")
    number = match["number"] + unit
    return float(parse_bytes(number)) if base_unit(unit) == "bytes" else parse_duration_s(number)
