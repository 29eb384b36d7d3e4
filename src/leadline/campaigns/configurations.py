"""The configuration space of a campaign, and the job of each configuration."""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from leadline.core.campaigns import Campaign, Configuration, Parameter, PlannedRun
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.runs import Run, Scale, Value

DIGITS = 4  # significant digits of a real value, for a readable command line


class Axis(Frozen):
    """One varying quantity at a scale: explicit ``levels``, else the range from ``low`` to ``high``."""

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
        """Number of values; infinity for real numbers."""
        if self.levels:
            return len(self.levels)
        return self.high - self.low + 1 if self.whole else 1 if self.low == self.high else math.inf

    def at(self, share: float) -> Value:
        """Return the value at position ``share`` (0 to 1); integers and levels have equal parts."""
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
    """Return the parameters in order, then ``cores``, ``gpus``, ``memory`` and ``partition`` if they vary."""
    varying = [_axis(parameter, scale) for parameter in campaign.parameters]
    varying += [Axis("cores", campaign.cores, numeric=True), Axis("gpus", campaign.gpus)]
    varying += [Axis("memory", campaign.memory_bytes, numeric=True)] if campaign.memory_bytes else []
    varying += [Axis("partition", campaign.partitions)] if campaign.partitions else []
    return tuple(varying)


def _axis(parameter: Parameter, scale: Scale) -> Axis:
    span, kind = parameter.range_at(scale), parameter.kind
    if span is None:
        return Axis(parameter.name, parameter.choices)
    inside = [value for value in parameter.values if span.low <= value <= span.high]
    return Axis(
        parameter.name, tuple(round(value) if kind.whole else value for value in inside), span.low, span.high,
        kind.whole, kind.logarithmic, parameter.carries_scale, numeric=True,
    )  # fmt: skip


def configurations(campaign: Campaign, scale: Scale, points: Iterable[Sequence[float]]) -> Iterator[Configuration]:
    """Yield the configuration at each point of the unit cube, whose dimensions are ``axes``."""
    varying = axes(campaign, scale)
    names = [parameter.name for parameter in campaign.parameters]
    for shares in points:
        values = {axis.name: axis.at(share) for axis, share in zip(varying, shares, strict=True)}
        memory, partition = values.get("memory"), values.get("partition")
        resources = ResourceSpec(
            cores_per_task=int(values["cores"]),
            gpus_per_node=int(values["gpus"]),
            memory_bytes_per_node=None if memory is None else int(memory),
        )
        parameters = {name: values[name] for name in names}
        yield Configuration(parameters, resources, None if partition is None else str(partition))


def run_configuration(run: Run) -> Configuration:
    """Return the configuration of a run."""
    resources = replace(run.job.resources, walltime_s=None, least_walltime_s=None)
    return Configuration(run.parameters, resources, run.job.partition)


def values_of(configuration: Configuration) -> dict[str, Value]:
    """Return the value of a configuration on every axis."""
    resources = configuration.resources
    values: dict[str, Value] = {**configuration.parameters, "cores": resources.cores_per_task or 1}
    values["gpus"] = resources.gpus_per_node
    if resources.memory_bytes_per_node is not None:
        values["memory"] = resources.memory_bytes_per_node
    if configuration.partition is not None:
        values["partition"] = configuration.partition
    return values


def configuration_key(configuration: Configuration) -> tuple[tuple[str, Value], ...]:
    """Return a key shared by equal configurations."""
    return tuple(sorted(values_of(configuration).items()))


def distinct_configurations(candidates: Iterable[Configuration]) -> Iterator[Configuration]:
    """Yield each configuration once, at its first occurrence."""
    keys = set()
    for candidate in candidates:
        if (key := configuration_key(candidate)) not in keys:
            keys.add(key)
            yield candidate


_PLACEHOLDER = re.compile(r"\{\{(?P<braces>\w+)\}\}|\{(?P<name>\w+)\}")

RESOURCES = ("cores", "gpus", "memory_mib", "memory_gib", "partition")  # placeholders of a run's resources


def placeholders(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names in single braces, in order; ``{{name}}`` is an escaped ``{name}``."""
    names = [match["name"] for word in words for match in _PLACEHOLDER.finditer(word) if match["name"]]
    return tuple(dict.fromkeys(names))


def build_job(campaign: Campaign, planned: PlannedRun) -> JobSpec:
    """Return the job of a run, with all placeholders in command, setup and environment filled in.

    ``{memory_mib}`` and ``{memory_gib}`` are the memory of one node. Values in setup lines are quoted for the shell.
    """
    configuration = planned.configuration
    values = _values(configuration)
    return JobSpec(
        name=campaign.name,
        command=tuple(_fill(word, values) for word in campaign.command),
        resources=replace(configuration.resources, walltime_s=campaign.walltime_s),
        system=campaign.system,
        partition=configuration.partition,
        account=campaign.account,
        workdir=campaign.workdir,
        environment={name: _fill(word, values) for name, word in campaign.environment.items()},
        setup=tuple(_fill(line, values, shlex.quote) for line in campaign.setup),
        watched=campaign.watch,
    )


def fill_command(words: Sequence[str], configuration: Configuration) -> tuple[str, ...]:
    """Fill the placeholders of a command from a configuration.

    Raises:
        InvalidInput: a placeholder has no value in the configuration.
    """
    values = _values(configuration)
    if missing := [name for name in placeholders(words) if name not in values]:
        raise InvalidInput(f"{{{missing[0]}}} of the command has no value: give it one")
    return tuple(_fill(word, values) for word in words)


def _values(configuration: Configuration) -> dict[str, str]:
    memory = configuration.resources.memory_bytes_per_node or 0
    return {
        **{name: str(value) for name, value in configuration.parameters.items()},
        "cores": str(configuration.resources.cores_per_task or 1),
        "gpus": str(configuration.resources.gpus_per_node),
        "memory_mib": str(memory // 2**20),
        "memory_gib": f"{memory / 2**30:g}",
        "partition": configuration.partition or "",
    }


def _fill(word: str, values: dict[str, str], quote: Callable[[str], str] = str) -> str:
    return _PLACEHOLDER.sub(
        lambda match: quote(values[match["name"]]) if match["name"] else f"{{{match['braces']}}}", word
    )
