"""The space that a campaign covers: what varies at each scale, and the configuration at every point of it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from leadline.core.campaigns import Campaign, Configuration, Parameter, Range
from leadline.core.jobs import ResourceSpec
from leadline.core.runs import Run, Scale
from leadline.core.samples import Value

DIGITS = 4
"""Significant digits of a real value, so that it reads well on a command line."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that varies at a scale: over ``levels`` where there are any, else from ``low`` to ``high``."""

    name: str
    levels: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    logarithmic: bool = False
    carries_scale: bool = False
    numeric: bool = False

    @property
    def count(self) -> float:
        """Return how many values there are; infinity for real numbers."""
        if self.levels:
            return len(self.levels)
        return self.high - self.low + 1 if self.whole else 1 if self.low == self.high else math.inf

    def at(self, share: float) -> Value:
        """Return the value at ``share`` (0 to 1) of the way; every whole number and level has its equal part."""
        share = min(max(share, 0.0), 1.0)
        if self.levels:
            return self.levels[min(int(share * len(self.levels)), len(self.levels) - 1)]
        margin = 0.5 if self.whole else 0.0
        low, high = self.low - margin, self.high + margin
        if self.logarithmic:
            low = max(low, self.low / 2)
            value = low * (high / low) ** share
        else:
            value = low + (high - low) * share
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else float(f"{value:.{DIGITS}g}")


def axes(campaign: Campaign, scale: Scale) -> tuple[Axis, ...]:
    """Return the parameters, in their order, then ``cores``, ``gpus``, ``memory`` and ``partition`` as far as given."""
    found = [_axis(parameter, scale) for parameter in campaign.parameters]
    found.append(Axis("cores", campaign.cores, numeric=True))
    found.append(Axis("gpus", campaign.gpus))
    if campaign.memory_bytes:
        found.append(Axis("memory", campaign.memory_bytes, numeric=True))
    if campaign.partitions:
        found.append(Axis("partition", campaign.partitions))
    return tuple(found)


def _axis(parameter: Parameter, scale: Scale) -> Axis:
    span = parameter.range_at(scale)
    if span is None:
        return Axis(parameter.name, parameter.choices)
    return Axis(
        parameter.name, levels(parameter, span), span.low, span.high, parameter.kind.whole,
        parameter.kind.logarithmic, parameter.carries_scale, numeric=True,
    )  # fmt: skip


def levels(parameter: Parameter, span: Range) -> tuple[Value, ...]:
    """Return the explicit values of a numeric parameter that lie within ``span``; none where any value will do."""
    inside = [value for value in parameter.values if span.low <= value <= span.high]
    return tuple(round(value) if parameter.kind.whole else value for value in inside)


def configurations(campaign: Campaign, scale: Scale, points: Iterable[Sequence[float]]) -> Iterator[Configuration]:
    """Yield the configuration at each point of the unit cube, which has one share for each of ``axes``."""
    found = axes(campaign, scale)
    names = [parameter.name for parameter in campaign.parameters]
    for shares in points:
        values = {axis.name: axis.at(share) for axis, share in zip(found, shares, strict=True)}
        memory, partition = values.get("memory"), values.get("partition")
        resources = ResourceSpec(
            cores_per_task=int(values["cores"]),
            gpus_per_node=int(values["gpus"]),
            memory_bytes_per_node=None if memory is None else int(memory),
        )
        parameters = {name: values[name] for name in names}
        yield Configuration(parameters, resources, None if partition is None else str(partition))


def configuration_of(run: Run) -> Configuration:
    """Return the configuration that a run was made with."""
    asked = run.job.resources
    resources = ResourceSpec(
        asked.nodes, asked.tasks_per_node, asked.cores_per_task, asked.gpus_per_node, asked.memory_bytes_per_node
    )
    return Configuration(run.parameters, resources, run.job.partition)


def values_of(one: Configuration) -> dict[str, Value]:
    """Return what a configuration has on every axis."""
    resources = one.resources
    values: dict[str, Value] = {**one.parameters, "cores": resources.cores_per_task or 1}
    values["gpus"] = resources.gpus_per_node
    if resources.memory_bytes_per_node is not None:
        values["memory"] = resources.memory_bytes_per_node
    if one.partition is not None:
        values["partition"] = one.partition
    return values


def key(one: Configuration) -> tuple[tuple[str, Value], ...]:
    """Return what two equal configurations share."""
    return tuple(sorted(values_of(one).items()))


def distinct(found: Iterable[Configuration]) -> Iterator[Configuration]:
    """Yield each configuration when it comes first."""
    seen = set()
    for one in found:
        if (name := key(one)) not in seen:
            seen.add(name)
            yield one
