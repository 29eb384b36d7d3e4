"""The space that a campaign covers: what varies at each scale, and the configuration at every point of it."""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from leadline.core.campaigns import Campaign, Configuration, Parameter, PlannedRun, Range
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.runs import Run, Scale, Value

DIGITS = 4
"""Significant digits of a real value, so that it reads well on a command line."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that varies at a scale: over ``levels_within`` where there are any, else from ``low`` to ``high``."""

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
        parameter.name, levels_within(parameter, span), span.low, span.high, parameter.kind.whole,
        parameter.kind.logarithmic, parameter.carries_scale, numeric=True,
    )  # fmt: skip


def levels_within(parameter: Parameter, span: Range) -> tuple[Value, ...]:
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


def run_configuration(run: Run) -> Configuration:
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


def configuration_key(one: Configuration) -> tuple[tuple[str, Value], ...]:
    """Return what two equal configurations share."""
    return tuple(sorted(values_of(one).items()))


def distinct_configurations(found: Iterable[Configuration]) -> Iterator[Configuration]:
    """Yield each configuration when it comes first."""
    seen = set()
    for one in found:
        if (name := configuration_key(one)) not in seen:
            seen.add(name)
            yield one


_PLACEHOLDER = re.compile(r"\{\{(?P<braces>\w+)\}\}|\{(?P<name>\w+)\}")

RESOURCES = ("cores", "gpus", "memory_mib", "memory_gib", "partition")
"""Placeholders that stand for a run's resources."""


def placeholders(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names in single braces, in order; ``{{name}}`` stands for ``{name}`` itself and is none."""
    found = [match["name"] for word in words for match in _PLACEHOLDER.finditer(word) if match["name"]]
    return tuple(dict.fromkeys(found))


def build_job(campaign: Campaign, planned: PlannedRun) -> JobSpec:
    """Return the job of a run: its words, setup lines and environment with every placeholder filled in.

    ``{memory_mib}`` and ``{memory_gib}`` are what one node gives. A value in a setup line is quoted for the shell.
    """
    one = planned.configuration
    values = _values(one)
    return JobSpec(
        name=campaign.name,
        command=tuple(_fill(word, values) for word in campaign.command),
        resources=replace(one.resources, walltime_s=campaign.walltime_s),
        system=campaign.system,
        partition=one.partition,
        account=campaign.account,
        workdir=campaign.workdir,
        environment={name: _fill(word, values) for name, word in campaign.environment.items()},
        setup=tuple(_fill(line, values, shlex.quote) for line in campaign.setup),
        watched=campaign.watch,
    )


def fill_command(words: Sequence[str], one: Configuration) -> tuple[str, ...]:
    """Return the words of a command with the placeholders of a configuration filled in.

    Raises:
        InvalidInput: a placeholder has no value in the configuration.
    """
    values = _values(one)
    if missing := [name for name in placeholders(words) if name not in values]:
        raise InvalidInput(f"{{{missing[0]}}} of the command has no value: give it one")
    return tuple(_fill(word, values) for word in words)


def _values(one: Configuration) -> dict[str, str]:
    return {**{name: str(value) for name, value in one.parameters.items()}, **_resources(one)}


def _resources(one: Configuration) -> dict[str, str]:
    memory = one.resources.memory_bytes_per_node or 0
    return {
        "cores": str(one.resources.cores_per_task or 1),
        "gpus": str(one.resources.gpus_per_node),
        "memory_mib": str(memory // 2**20),
        "memory_gib": f"{memory / 2**30:g}",
        "partition": one.partition or "",
    }


def _fill(word: str, values: dict[str, str], quoted: Callable[[str], str] = str) -> str:
    return _PLACEHOLDER.sub(
        lambda match: quoted(values[match["name"]]) if match["name"] else f"{{{match['braces']}}}", word
    )
