"""The pipeline file: tiers, events, and the stages that events start."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePath
from typing import TypeVar

import msgspec
from msgspec import field

from leadline.core.documents import MOST_TOML_BYTES, from_toml, split_command
from leadline.core.errors import InvalidInput, MissingExtra, UnknownName
from leadline.core.pipelines import (
    HERE,
    MOST_EVENTS,
    MOST_WAITING,
    TRIES,
    CountSource,
    EventSource,
    FileSource,
    MetricSource,
    MqttSource,
    Pipeline,
    PipelineStage,
    PipelineTier,
    ReviewQueue,
    ScheduleSource,
)
from leadline.core.units import parse_bytes, parse_duration_s
from leadline.files.read import read_input_text

Amount = TypeVar("Amount", int, float)

_NAME = re.compile(r"[A-Za-z0-9][\w-]*")
_PRICE = re.compile(r"(?P<amount>\d[\d_]*\.?\d*)\s*USD\s*/\s*h(?:our)?", re.IGNORECASE)
_DOLLARS = re.compile(r"(?P<amount>\d[\d_]*\.?\d*)\s*USD", re.IGNORECASE)


class _Mqtt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    broker: str = "localhost:1883"


class _Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stage: str
    name: str
    above: float | None = None
    below: float | None = None
    every: bool = False


class _Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    of: str
    reaches: float


class _EventFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mqtt: _Mqtt | None = None
    files: str | None = None
    settle: str | None = None
    schedule: str | None = None
    metric: _Metric | None = None
    count: _Count | None = None


class _TierFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    on: str = HERE
    folder: str | None = None
    device: str | None = None
    price: str | None = None
    cores: int | None = None
    gpus: int = 0
    memory: str | None = None


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    most: int = MOST_EVENTS
    wait: str | None = None


class _Review(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str
    labels: list[str] = field(default_factory=list)


class _StageFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    on: str | list[str]
    command: str | list[str] | None = None
    workload: str | None = None
    batch: _Batch = _Batch()
    tier: str | list[str] | None = None
    running: int = 1
    waiting: int = MOST_WAITING
    deadline: str | None = None
    budget: str | None = None
    reads: str | list[str] = field(default_factory=list)
    writes: str | list[str] = field(default_factory=list)
    tries: int = TRIES
    review: _Review | None = None


class _PipelineTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str | None = None
    folder: str = "."


class _PipelineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: dict[str, _EventFile]
    stages: dict[str, _StageFile]
    pipeline: _PipelineTable = _PipelineTable()
    tiers: dict[str, _TierFile] = field(default_factory=lambda: {HERE: _TierFile()})


def read_pipeline(path: Path) -> Pipeline:
    """Read a pipeline from its TOML file.

    Raises:
        InvalidInput: the file is unreadable, malformed (with the line), or inconsistent: a name without a table, stages
            that start each other in a circle, an event that starts nothing …
        MissingExtra: a schedule needs croniter.
    """
    content = from_toml(read_input_text(path, most=MOST_TOML_BYTES), _PipelineFile, label=str(path), finite=True)
    try:
        return _pipeline(content, path.absolute())
    except MissingExtra:
        raise
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def _pipeline(content: _PipelineFile, path: Path) -> Pipeline:
    tiers = {name: _tier(name, table) for name, table in content.tiers.items()}
    events = {name: _event(name, table) for name, table in content.events.items()}
    stages = {name: _stage(name, table, tuple(tiers), path.parent) for name, table in content.stages.items()}
    name = content.pipeline.name or path.stem
    _check_names(name, tiers, events, stages)
    pipeline = Pipeline(
        name, str(path.parent), str((path.parent / content.pipeline.folder).resolve()), tiers, events, stages
    )
    _check_sources(pipeline)
    order = _order(pipeline)
    return msgspec.structs.replace(pipeline, stages={each: stages[each] for each in order if each in stages})


def _tier(name: str, table: _TierFile) -> PipelineTier:
    label = f"tier {name!r}"
    for key, value, least in (("cores", table.cores, 1), ("gpus", table.gpus, 0)):
        _at_least(f"{key} of {label}", value, least)
    memory = None if table.memory is None else _parsed(f"memory of {label}", table.memory, parse_bytes)
    price = None if table.price is None else _amount(f"price of {label}", table.price, _PRICE, "0.40 USD/h")
    folder = None if table.folder is None else _remote_folder(label, table.folder)
    return PipelineTier(
        name, table.on, folder, table.device, price, table.cores, table.gpus, None if memory is None else int(memory)
    )


def _event(name: str, table: _EventFile) -> EventSource:
    kinds = ("mqtt", "files", "schedule", "metric", "count")
    given = [kind for kind in kinds if getattr(table, kind) is not None]
    if len(given) != 1:
        has = f"has {' and '.join(given)}" if given else "has no source"
        raise InvalidInput(f"event {name!r} {has}: give it exactly one of {', '.join(kinds)}")
    if table.settle is not None and table.files is None:
        raise InvalidInput(f"event {name!r} has settle, which is for files: remove it")
    if table.mqtt is not None:
        return _mqtt(name, table.mqtt)
    if table.files is not None:
        settle_s = 1.0 if table.settle is None else _parsed(f"settle of event {name!r}", table.settle, parse_duration_s)
        return FileSource(_inside(f"files of event {name!r}", table.files), settle_s)
    if table.schedule is not None:
        return _schedule(name, table.schedule)
    if table.metric is not None:
        above, below = table.metric.above, table.metric.below
        limit = above if below is None else below
        if limit is None or (above is not None and below is not None):
            raise InvalidInput(f"the metric of event {name!r} needs exactly one line: write above = 0.5 or below = 0.5")
        return MetricSource(table.metric.stage, table.metric.name, limit, above is not None, table.metric.every)
    assert table.count is not None  # noqa: S101 - the only kind that is left
    of, _, metric = table.count.of.partition(".")
    return CountSource(of, metric or None, _positive(f"reaches of event {name!r}", table.count.reaches))


def _mqtt(name: str, table: _Mqtt) -> MqttSource:
    host, _, port = table.broker.rpartition(":") if ":" in table.broker else (table.broker, "", "1883")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InvalidInput(
            f'the broker of event {name!r} is {table.broker!r}: write a host and a port, as in "localhost:1883"'
        )
    levels = table.topic.split("/")
    if not table.topic or "#" in levels[:-1] or any(len(level) > 1 and set("+#") & set(level) for level in levels):
        raise InvalidInput(
            f"the topic of event {name!r} is {table.topic!r}: a wildcard is a whole level, and # the last one"
        )
    return MqttSource(host, int(port), table.topic)


def _schedule(name: str, cron: str) -> ScheduleSource:
    try:
        from croniter import croniter  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingExtra("a schedule", "pipeline") from error
    if not croniter.is_valid(cron):
        raise InvalidInput(
            f"the schedule of event {name!r} is {cron!r}, which is no cron expression: write minute, hour, day, month "
            'and weekday, as in "0 2 * * *"'
        )
    return ScheduleSource(cron)


def _stage(name: str, table: _StageFile, tiers: tuple[str, ...], home: Path) -> PipelineStage:
    label = f"stage {name!r}"
    if table.command is None and table.workload is None:
        raise InvalidInput(f'{label} has nothing to run: add command = "python …", or workload = "FILE.toml"')
    for key, value in (
        ("running", table.running), ("waiting", table.waiting), ("tries", table.tries),
        ("batch.most", table.batch.most),
    ):  # fmt: skip
        _at_least(f"{key} of {label}", value, 1)
    if table.waiting < table.batch.most:
        raise InvalidInput(
            f"{label} takes {table.batch.most} events in a run, but only {table.waiting} may wait: raise waiting, or "
            "lower batch.most"
        )
    on = _list(table.on)
    if not on:
        raise InvalidInput(f"{label} starts on nothing: name an event or a stage in on")
    words = () if table.command is None else split_command(table.command, label=label)
    return PipelineStage(
        name=name,
        command=tuple(words),
        on=tuple(dict.fromkeys(on)),
        tiers=tuple(dict.fromkeys(_list(table.tier))) or tiers,
        workload=None if table.workload is None else str(home / table.workload),
        most=table.batch.most,
        wait_s=0.0
        if table.batch.wait is None
        else _parsed(f"batch.wait of {label}", table.batch.wait, parse_duration_s),
        running=table.running,
        waiting=table.waiting,
        deadline_s=None
        if table.deadline is None
        else _parsed(f"deadline of {label}", table.deadline, parse_duration_s),
        budget_usd=None if table.budget is None else _amount(f"budget of {label}", table.budget, _DOLLARS, "2 USD"),
        reads=tuple(_inside(f"reads of {label}", folder) for folder in _list(table.reads)),
        writes=tuple(_folder_inside(f"writes of {label}", folder) for folder in _list(table.writes)),
        tries=table.tries,
        review=None
        if table.review is None
        else ReviewQueue(_inside(f"review.folder of {label}", table.review.folder), tuple(table.review.labels)),
    )


def _check_names(
    name: str, tiers: Mapping[str, PipelineTier], events: Mapping[str, EventSource], stages: Mapping[str, PipelineStage]
) -> None:
    """Check all names: of tables, and those that stages refer to."""
    for kind, names in (("pipeline", [name]), ("tier", tiers), ("event", events), ("stage", stages)):
        for each in names:
            if not _NAME.fullmatch(each):
                raise InvalidInput(f"the {kind} name {each!r} cannot name files and jobs: use letters, digits, - and _")
    for each in events.keys() & stages.keys():
        raise InvalidInput(f"{each!r} names an event and a stage: rename one of them")
    if not stages:
        raise InvalidInput("there is no stage: add a table [stages.NAME]")
    for stage in stages.values():
        for each in stage.on:
            _known(f"event or stage in on of stage {stage.name!r}:", each, [*events, *stages])
        for each in stage.tiers:
            _known(f"tier of stage {stage.name!r}:", each, tiers)


def _check_sources(pipeline: Pipeline) -> None:
    """Check what events are made of, and that each of them starts something."""
    stages, events = pipeline.stages, pipeline.events
    for name, source in events.items():
        if isinstance(source, MetricSource):
            _known(f"stage in the metric of event {name!r}:", source.stage, stages)
        if isinstance(source, CountSource):
            _known(
                f"event or stage in the count of event {name!r}:",
                source.of,
                stages if source.metric else [*events, *stages],
            )
        counted = any(isinstance(other, CountSource) and other.of == name for other in events.values())
        if not counted and not pipeline.fed_by(name):
            raise InvalidInput(f"event {name!r} starts no stage: name it in the on of one, or remove it")


def _order(pipeline: Pipeline) -> list[str]:
    """Return events and stages in an order in which causes come first; refuse circles."""
    names = [*pipeline.events, *pipeline.stages]
    try:
        return list(TopologicalSorter({name: pipeline.upstream(name) for name in names}).static_order())
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise InvalidInput(f"these start each other in a circle, without an end: {circle}; break it") from error


def _known(kind: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise UnknownName(kind, name, names)


def _list(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else value


def _at_least(label: str, value: float | None, least: int) -> None:
    if value is not None and value < least:
        raise InvalidInput(f"{label} is {value:g}, but it must be at least {least}")


def _positive(label: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise InvalidInput(f"{label} is {value:g}, but it must be more than 0")
    return value


def _parsed(label: str, text: str, parse: Callable[[str], Amount]) -> Amount:
    try:
        amount = parse(text)
    except InvalidInput as error:
        raise InvalidInput(f"{label}: {error}") from error
    _positive(label, amount)
    return amount


def _amount(label: str, text: str, form: re.Pattern[str], example: str) -> float:
    match = form.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f'{label} is {text!r}, which is no amount in US dollars: write for example "{example}"')
    return float(match["amount"])


def _inside(label: str, path: str) -> str:
    """Return a path or pattern within the pipeline's folder."""
    pure = PurePath(path)
    if not path or pure.is_absolute() or ".." in pure.parts:
        raise InvalidInput(f"{label} is {path!r}, but it must lie in the pipeline's folder: give a path relative to it")
    return path


def _folder_inside(label: str, path: str) -> str:
    """Return a folder below the pipeline's folder."""
    if not PurePath(_inside(label, path)).parts:
        raise InvalidInput(f"{label} is {path!r}, all data of the pipeline: name a folder in it")
    return path


def _remote_folder(label: str, path: str) -> str:
    """Return a folder of another system."""
    if not path or path[0] in "~-" or ".." in PurePath(path).parts or not path.isprintable():
        raise InvalidInput(f"folder of {label} is {path!r}: give a path relative to the home folder there, or from /")
    return path
