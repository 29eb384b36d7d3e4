"""Turn a planned run into the job that a scheduler takes."""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from leadline.core.campaigns import Campaign, Configuration, PlannedRun
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec

_PLACEHOLDER = re.compile(r"\{\{(?P<braces>\w+)\}\}|\{(?P<name>\w+)\}")

RESOURCES = ("cores", "gpus", "memory_mib", "memory_gib", "partition")
"""Placeholders that stand for a run's resources."""


def placeholders(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names in single braces, in order; ``{{name}}`` stands for ``{name}`` itself and is none."""
    found = [match["name"] for word in words for match in _PLACEHOLDER.finditer(word) if match["name"]]
    return tuple(dict.fromkeys(found))


def job_of(campaign: Campaign, planned: PlannedRun) -> JobSpec:
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


def command_of(words: Sequence[str], one: Configuration) -> tuple[str, ...]:
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
