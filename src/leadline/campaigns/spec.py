"""Read a campaign's file: the command, its parameters at both scales, the resources, the budget."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from leadline.campaigns.budgets import parse_budget, require_prices
from leadline.campaigns.configurations import RESOURCES, placeholders
from leadline.core.campaigns import Campaign, Design, Parameter, ParameterKind, Range
from leadline.core.documents import explain_read_error, from_toml
from leadline.core.errors import InvalidInput
from leadline.core.runs import Value
from leadline.core.units import parse_bytes, parse_duration_s

T = TypeVar("T")

_NAME = re.compile(r"\w[\w.-]*")

Numbers = list[int | float] | int | float


class _ParameterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[parameters.NAME]``: choices, or a range at each scale, which may hold explicit values only."""

    kind: ParameterKind | None = None
    choices: list[str | int | float] | None = None
    range: Numbers | None = None
    scaled_down: Numbers | None = None
    full_scale: Numbers | None = None
    values: list[int | float] | None = None


class _ResourcesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cores: int | list[int] = 1
    gpus: int | list[int] = 0
    memory: str | int | list[str | int] | None = None
    partition: str | list[str] | None = None


class _PricesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    core_hour: float | None = None
    gpu_hour: float | None = None


class _JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workdir: str = "."
    setup: str | list[str] = msgspec.field(default_factory=list)
    watch: bool = True
    environment: dict[str, str | int | float] = msgspec.field(default_factory=dict)
    system: str | None = None
    account: str | None = None


class _CampaignFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str | list[str]
    parameters: dict[str, _ParameterFile]
    name: str | None = None
    budget: str | int | float | None = None
    repeats: int = 1
    limit: str | int | float | None = None
    design: Design = Design.ADAPTIVE
    seed: int = 0
    scaled_down_runs: int | None = None
    full_scale_runs: int | None = None
    first_run: str | int | float | None = None
    resources: _ResourcesFile = _ResourcesFile()
    prices: _PricesFile = _PricesFile()
    job: _JobFile = _JobFile()


def read_campaign(path: Path) -> Campaign:
    """Read a campaign from its TOML file; a relative ``workdir`` counts from the file, and is its folder by default.

    Raises:
        InvalidInput: the file cannot be read, has not the form of a campaign (with the line), or says what cannot be:
            a placeholder without a parameter, a parameter the command never uses, a range that is empty or reversed …
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {explain_read_error(error)}") from error
    content = from_toml(text, _CampaignFile, label=str(path))
    try:
        campaign = _campaign(content, path)
        _check(campaign)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    return campaign


def _campaign(content: _CampaignFile, path: Path) -> Campaign:
    resources, job = content.resources, content.job
    return Campaign(
        name=content.name or path.stem,
        command=_words(content.command),
        parameters=tuple(_parameter(name, said) for name, said in content.parameters.items()),
        cores=_whole("cores", resources.cores, least=1),
        gpus=_whole("gpus", resources.gpus, least=0),
        memory_bytes=_distinct("memory", [_bytes(one) for one in _list(resources.memory)]),
        partitions=_distinct("partition", _list(resources.partition)),
        budget=None if content.budget is None else parse_budget(content.budget),
        scaled_down_runs=content.scaled_down_runs,
        full_scale_runs=content.full_scale_runs,
        repeats=content.repeats,
        walltime_s=_duration("limit", content.limit),
        design=content.design,
        seed=content.seed,
        core_hour=content.prices.core_hour,
        gpu_hour=content.prices.gpu_hour,
        first_run_s=_duration("first_run", content.first_run),
        workdir=_folder(job.workdir, path),
        setup=tuple(_list(job.setup)),
        watch=job.watch,
        environment={name: str(value) for name, value in job.environment.items()},
        system=job.system,
        account=job.account,
    )


def _words(command: str | list[str]) -> tuple[str, ...]:
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:
        raise InvalidInput(f"the command {command!r} cannot be split into words ({error}): close its quotes") from error
    if not words:
        raise InvalidInput("the command is empty: write what you would type, as in python train.py --epochs {epochs}")
    return tuple(words)


def _parameter(name: str, said: _ParameterFile) -> Parameter:
    """Return the parameter that a table describes, by choices or by ranges."""
    if not re.fullmatch(r"[^\W\d]\w*", name):
        raise InvalidInput(f"the parameter {name!r} cannot stand in braces: name it with letters, digits and _")
    if name in RESOURCES:
        raise InvalidInput(
            f"the parameter {name} has the name of a resource, which {{{name}}} stands for already: give it another "
            "name, or vary it under [resources]"
        )
    if said.choices is not None:
        return _categorical(name, said, said.choices)
    if said.kind is ParameterKind.CATEGORICAL:
        raise InvalidInput(f'the parameter {name} is categorical, but has no choices: add choices = ["…", "…"]')
    given = [one for one in (said.range, said.scaled_down, said.full_scale, said.values) if one is not None]
    numbers = [number for one in given for number in _list(one)]
    kind = said.kind or (ParameterKind.INTEGER if _all_whole(numbers) else ParameterKind.REAL)
    values = _values(name, kind, said.values)
    around = [min(values), max(values)] if values else None
    both = said.range if said.range is not None else around
    if said.range is not None and (said.scaled_down is not None or said.full_scale is not None):
        raise InvalidInput(
            f"the parameter {name} has a range for both scales and one for a single scale: write either range, or "
            "scaled_down and full_scale"
        )
    small = _range(name, "scaled_down", kind, said.scaled_down if said.scaled_down is not None else both)
    full = _range(name, "full_scale", kind, said.full_scale if said.full_scale is not None else both)
    for where, one in (("scaled_down", small), ("full_scale", full)):
        if values and not any(one.low <= value <= one.high for value in values):
            raise InvalidInput(
                f"none of the values of {name} lies in {where} = [{one.low:g}, {one.high:g}]: add one that does"
            )
    return Parameter(name, kind, small, full, values=values)


def _categorical(name: str, said: _ParameterFile, choices: Sequence[Value]) -> Parameter:
    if said.kind not in (None, ParameterKind.CATEGORICAL):
        raise InvalidInput(f"the parameter {name} is {said.kind}, but has choices: write values = […] for numbers")
    if any(one is not None for one in (said.range, said.scaled_down, said.full_scale, said.values)):
        raise InvalidInput(f"the parameter {name} has both choices and numbers: keep one of them")
    if not choices:
        raise InvalidInput(f"the choices of {name} are empty: name at least one")
    names = _distinct(f"choices of {name}", [str(one) for one in choices])
    return Parameter(name, ParameterKind.CATEGORICAL, choices=names)


def _values(name: str, kind: ParameterKind, values: Sequence[float] | None) -> tuple[float, ...]:
    """Return the explicit values of a numeric parameter in order; none where it has none."""
    if values is None:
        return ()
    if not values:
        raise InvalidInput(f"the values of {name} are empty: name at least one, or give a range")
    for value in values:
        _check_number(name, kind, value)
    return tuple(sorted(_distinct(f"values of {name}", values)))


def _range(name: str, where: str, kind: ParameterKind, said: Numbers | None) -> Range:
    if said is None:
        raise InvalidInput(
            f"the parameter {name} has no values for {where}: add {where} = [low, high], or range = [low, high] "
            "for both scales, or choices"
        )
    ends = _list(said)
    if len(ends) not in (1, 2):
        raise InvalidInput(
            f"{where} of {name} is {ends}, but a range has two ends: write [low, high], and explicit values as "
            "values = […]"
        )
    for end in ends:
        _check_number(name, kind, end)
    low, high = ends[0], ends[-1]
    if low > high:
        raise InvalidInput(f"{where} of {name} is [{low:g}, {high:g}], which runs backwards: write [{high:g}, {low:g}]")
    return Range(float(low), float(high))


def _check_number(name: str, kind: ParameterKind, value: float) -> None:
    if not math.isfinite(value):
        raise InvalidInput(f"the parameter {name} has the value {value}: give a finite number")
    if kind.whole and value != round(value):
        raise InvalidInput(f"the parameter {name} is {kind}, but {value:g} is not whole: make it real or log")
    if kind.logarithmic and value <= 0:
        raise InvalidInput(
            f"the parameter {name} is {kind}, but {value:g} has no logarithm: start above 0, or make it "
            f"{'integer' if kind.whole else 'real'}"
        )


def _check(campaign: Campaign) -> None:
    """Refuse what no single key shows to be wrong."""
    if not _NAME.fullmatch(campaign.name):
        raise InvalidInput(
            f"the name {campaign.name!r} cannot name a folder and a job: use letters, digits, '.', '-' and '_'"
        )
    if not campaign.parameters:
        raise InvalidInput("there is no parameter: add a table [parameters.NAME] for each {NAME} of the command")
    _check_placeholders(campaign)
    if not any(one.carries_scale for one in campaign.parameters):
        raise InvalidInput(
            "no parameter carries scale: give the one that makes runs long (epochs, samples, grid size) different "
            "values at the two scales, as in scaled_down = [1, 3] and full_scale = [10, 60]"
        )
    for name, count, least in (
        ("repeats", campaign.repeats, 1),
        ("scaled_down_runs", campaign.scaled_down_runs, 1),
        ("full_scale_runs", campaign.full_scale_runs, 0),
        ("seed", campaign.seed, 0),
    ):
        if count is not None and count < least:
            raise InvalidInput(f"{name} is {count}, but it must be at least {least}")
    for name, price in (("core_hour", campaign.core_hour), ("gpu_hour", campaign.gpu_hour)):
        if price is not None and not 0 <= price < math.inf:
            raise InvalidInput(f"{name} is {price:g}, but a price is 0 or more US dollars")
    if campaign.budget is not None:
        require_prices(campaign, campaign.budget)


def _check_placeholders(campaign: Campaign) -> None:
    """Refuse placeholders that nothing fills, and parameters that fill none."""
    used = placeholders((*campaign.command, *campaign.setup, *campaign.environment.values()))
    known = {one.name for one in campaign.parameters}
    for name in used:
        if name not in known and name not in RESOURCES:
            raise InvalidInput(
                f"the command has {{{name}}}, but there is no [parameters.{name}]: add it, or write {{{{{name}}}}} "
                "where the braces are the command's own"
            )
    for name in known:
        if name not in used:
            raise InvalidInput(f"the command never uses the parameter {name}: write {{{name}}} where its value belongs")
    if not campaign.memory_bytes and (name := next((one for one in used if one.startswith("memory_")), "")):
        raise InvalidInput(f'the command has {{{name}}}, but [resources] has no memory: add memory = "2GiB"')
    if not campaign.partitions and "partition" in used:
        raise InvalidInput('the command has {partition}, but [resources] has no partition: add partition = "…"')


def _list(said: object) -> list:  # type: ignore[type-arg] # what a key holds, alone or in a list
    return [] if said is None else list(said) if isinstance(said, list) else [said]


def _all_whole(numbers: Iterable[float]) -> bool:
    return all(isinstance(number, int) for number in numbers)


def _whole(name: str, said: int | list[int], *, least: int) -> tuple[int, ...]:
    numbers = _list(said)
    if not numbers:
        raise InvalidInput(f"{name} is empty: give a number, or leave it out")
    for number in numbers:
        if number < least:
            raise InvalidInput(f"{name} is {number}, but it must be at least {least}")
    return tuple(sorted(_distinct(name, numbers)))


def _distinct(what: str, values: Sequence[T]) -> tuple[T, ...]:
    for value, count in Counter((type(one) is str, one) for one in values).items():
        if count > 1:
            raise InvalidInput(f"the {what} name {value[1]!r} {count} times: keep it once")
    return tuple(values)


def _bytes(said: str | int) -> int:
    size = said if isinstance(said, int) else parse_bytes(said)
    if size <= 0:
        raise InvalidInput(f"memory is {said}, but it must be more than 0")
    return size


def _duration(name: str, said: str | float | None) -> float | None:
    if said is None:
        return None
    try:
        duration_s = parse_duration_s(said) if isinstance(said, str) else float(said)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from error
    if not 0 < duration_s < math.inf:
        raise InvalidInput(f"{name} is {said}, but it must be more than 0")
    return duration_s


def _folder(workdir: str, path: Path) -> str:
    folder = (path.parent / workdir).resolve()
    if not folder.is_dir():
        raise InvalidInput(f"workdir is {workdir!r}, but there is no folder {folder}: make it, or name another")
    return str(folder)
