"""The campaign file: the command, its parameters at both scales, the resources, the budget."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from leadline.campaigns.budgets import parse_budget, require_prices
from leadline.campaigns.configurations import RESOURCES, placeholders
from leadline.core.campaigns import Campaign, Design, Parameter, ParameterKind, Range
from leadline.core.documents import MOST_TOML_BYTES, from_toml, split_command
from leadline.core.errors import InvalidInput
from leadline.core.runs import Value
from leadline.core.units import parse_bytes, parse_duration_s
from leadline.files.read import read_input_text

T = TypeVar("T")
A = TypeVar("A", int, float)

Numbers = list[int | float] | int | float


class _ParameterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[parameters.NAME]``: choices, or a range at each scale, optionally with explicit values."""

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
    """Read a campaign from its TOML file; ``workdir`` is relative to the file and defaults to its folder.

    Raises:
        InvalidInput: the file is unreadable, malformed (with the line), or inconsistent: a placeholder without a
            parameter, an unused parameter, an empty or reversed range …
    """
    content = from_toml(read_input_text(path, most=MOST_TOML_BYTES), _CampaignFile, label=str(path))
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
        command=tuple(split_command(content.command)),
        parameters=tuple(_parameter(name, table) for name, table in content.parameters.items()),
        cores=_whole("cores", resources.cores, minimum=1),
        gpus=_whole("gpus", resources.gpus, minimum=0),
        memory_bytes=_distinct("memory", [_amount("memory", size, parse_bytes) for size in _list(resources.memory)]),
        partitions=_distinct("partition", _list(resources.partition)),
        budget=None if content.budget is None else parse_budget(str(content.budget)),
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


def _parameter(name: str, table: _ParameterFile) -> Parameter:
    """Convert a parameter table with choices or ranges."""
    if not re.fullmatch(r"[^\W\d]\w*", name):
        raise InvalidInput(f"the parameter {name!r} cannot stand in braces: name it with letters, digits and _")
    if name in RESOURCES:
        raise InvalidInput(
            f"the parameter {name} has the name of a resource, which {{{name}}} stands for already: give it another "
            "name, or vary it under [resources]"
        )
    if table.choices is not None:
        return _categorical(name, table, table.choices)
    if table.kind is ParameterKind.CATEGORICAL:
        raise InvalidInput(f'the parameter {name} is categorical, but has no choices: add choices = ["…", "…"]')
    numeric_keys = (table.range, table.scaled_down, table.full_scale, table.values)
    numbers = [number for key in numeric_keys for number in _list(key)]
    whole = all(isinstance(number, int) for number in numbers)
    kind = table.kind or (ParameterKind.INTEGER if whole else ParameterKind.REAL)
    values = _values(name, kind, table.values)
    shared_range = [min(values), max(values)] if values and table.range is None else table.range
    if table.range is not None and (table.scaled_down is not None or table.full_scale is not None):
        raise InvalidInput(
            f"the parameter {name} has a range for both scales and one for a single scale: write either range, or "
            "scaled_down and full_scale"
        )
    spans = []
    for scale_name, bounds in (("scaled_down", table.scaled_down), ("full_scale", table.full_scale)):
        spans.append(span := _range(name, scale_name, kind, shared_range if bounds is None else bounds))
        if values and not any(span.low <= value <= span.high for value in values):
            raise InvalidInput(
                f"none of the values of {name} lies in {scale_name} = [{span.low:g}, {span.high:g}]: add one that does"
            )
    small, full = spans
    return Parameter(name, kind, small, full, values=values)


def _categorical(name: str, table: _ParameterFile, choices: Sequence[Value]) -> Parameter:
    if table.kind not in (None, ParameterKind.CATEGORICAL):
        raise InvalidInput(f"the parameter {name} is {table.kind}, but has choices: write values = […] for numbers")
    if any(value is not None for value in (table.range, table.scaled_down, table.full_scale, table.values)):
        raise InvalidInput(f"the parameter {name} has both choices and numbers: keep one of them")
    if not choices:
        raise InvalidInput(f"the choices of {name} are empty: name at least one")
    names = _distinct(f"choices of {name}", [str(value) for value in choices])
    return Parameter(name, ParameterKind.CATEGORICAL, choices=names)


def _values(name: str, kind: ParameterKind, values: Sequence[float] | None) -> tuple[float, ...]:
    """Return the explicit values of a numeric parameter in order; empty if there are none."""
    if values is None:
        return ()
    if not values:
        raise InvalidInput(f"the values of {name} are empty: name at least one, or give a range")
    for value in values:
        _check_number(name, kind, value)
    return tuple(sorted(_distinct(f"values of {name}", values)))


def _range(name: str, scale_name: str, kind: ParameterKind, numbers: Numbers | None) -> Range:
    if numbers is None:
        raise InvalidInput(
            f"the parameter {name} has no values for {scale_name}: add {scale_name} = [low, high], or "
            "range = [low, high] for both scales, or choices"
        )
    bounds = _list(numbers)
    if len(bounds) not in (1, 2):
        raise InvalidInput(
            f"{scale_name} of {name} is {bounds}, but a range has two ends: write [low, high], and explicit values as "
            "values = […]"
        )
    for bound in bounds:
        _check_number(name, kind, bound)
    low, high = bounds[0], bounds[-1]
    if low > high:
        raise InvalidInput(
            f"{scale_name} of {name} is [{low:g}, {high:g}], which runs backwards: write [{high:g}, {low:g}]"
        )
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
    """Check constraints across keys."""
    if not re.fullmatch(r"\w[\w.-]*", campaign.name):
        raise InvalidInput(
            f"the name {campaign.name!r} cannot name a folder and a job: use letters, digits, '.', '-' and '_'"
        )
    if not campaign.parameters:
        raise InvalidInput("there is no parameter: add a table [parameters.NAME] for each {NAME} of the command")
    _check_placeholders(campaign)
    if not any(parameter.carries_scale for parameter in campaign.parameters):
        raise InvalidInput(
            "no parameter carries scale: give the one that makes runs long (epochs, samples, grid size) different "
            "values at the two scales, as in scaled_down = [1, 3] and full_scale = [10, 60]"
        )
    for name, count, minimum in (
        ("repeats", campaign.repeats, 1),
        ("scaled_down_runs", campaign.scaled_down_runs, 1),
        ("full_scale_runs", campaign.full_scale_runs, 0),
        ("seed", campaign.seed, 0),
    ):
        if count is not None and count < minimum:
            raise InvalidInput(f"{name} is {count}, but it must be at least {minimum}")
    for name, price in (("core_hour", campaign.core_hour), ("gpu_hour", campaign.gpu_hour)):
        if price is not None and not 0 <= price < math.inf:
            raise InvalidInput(f"{name} is {price:g}, but a price is 0 or more US dollars")
    if campaign.budget is not None:
        require_prices(campaign, campaign.budget)


def _check_placeholders(campaign: Campaign) -> None:
    """Refuse placeholders without a value, and parameters without a placeholder."""
    used = placeholders((*campaign.command, *campaign.setup, *campaign.environment.values()))
    names = {parameter.name for parameter in campaign.parameters}
    for name in used:
        if name not in names and name not in RESOURCES:
            raise InvalidInput(
                f"the command has {{{name}}}, but there is no [parameters.{name}]: add it, or write {{{{{name}}}}} "
                "where the braces are the command's own"
            )
    for name in names:
        if name not in used:
            raise InvalidInput(f"the command never uses the parameter {name}: write {{{name}}} where its value belongs")
    if not campaign.memory_bytes and (
        name := next((parameter for parameter in used if parameter.startswith("memory_")), "")
    ):
        raise InvalidInput(f'the command has {{{name}}}, but [resources] has no memory: add memory = "2GiB"')
    if not campaign.partitions and "partition" in used:
        raise InvalidInput('the command has {partition}, but [resources] has no partition: add partition = "…"')


def _list(value: object) -> list:  # type: ignore[type-arg] # what a key holds, alone or in a list
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def _whole(name: str, value: int | list[int], *, minimum: int) -> tuple[int, ...]:
    numbers = _list(value)
    if not numbers:
        raise InvalidInput(f"{name} is empty: give a number, or leave it out")
    for number in numbers:
        if number < minimum:
            raise InvalidInput(f"{name} is {number}, but it must be at least {minimum}")
    return tuple(sorted(_distinct(name, numbers)))


def _distinct(label: str, values: Sequence[T]) -> tuple[T, ...]:
    # The text "1" and the number 1 stay apart, so that the message quotes what the user wrote.
    for (_, item), count in Counter((type(item) is str, item) for item in values).items():
        if count > 1:
            raise InvalidInput(f"the {label} name {item!r} {count} times: keep it once")
    return tuple(values)


def _amount(name: str, value: str | float, parse: Callable[[str], A]) -> A:
    """Return the positive amount that a text gives."""
    try:
        amount = parse(str(value))
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from error
    if not 0 < amount < math.inf:
        raise InvalidInput(f"{name} is {value}, but it must be more than 0")
    return amount


def _duration(name: str, value: str | float | None) -> float | None:
    return None if value is None else _amount(name, value, parse_duration_s)


def _folder(workdir: str, path: Path) -> str:
    folder = (path.parent / workdir).resolve()
    if not folder.is_dir():
        raise InvalidInput(f"workdir is {workdir!r}, but there is no folder {folder}: make it, or name another")
    return str(folder)
