"""Pipelines: stages of commands, the events that start them, and the tiers that they run on."""

from leadline.core.frozen import Frozen

HERE = "here"
"""Target of a tier: this machine."""
MOST_EVENTS, MOST_WAITING, TRIES = 100, 1000, 3
"""Defaults of a stage: events of one run, events that may wait, and tries of a run."""


class PipelineTier(Frozen):
    """A place with a price and limits; without a price, the pipeline counts no cost for it."""

    name: str
    on: str = HERE
    folder: str | None = None  # of its files on a system behind SSH, below the home folder there
    device: str | None = None  # row of the catalog, for power
    usd_per_h: float | None = None
    cores: int | None = None
    gpus: int = 0
    memory_bytes: int | None = None


class MqttSource(Frozen, tag="mqtt"):
    """Messages of an MQTT topic; ``topic`` may have the wildcards ``+`` and ``#``."""

    host: str
    port: int
    topic: str

    def __str__(self) -> str:
        return f"MQTT {self.topic} at {self.host}:{self.port}"


class FileSource(Frozen, tag="files"):
    """Files that match a pattern of ``pathlib`` in the folder, complete if unchanged for ``settle_s``."""

    pattern: str
    settle_s: float = 1.0

    def __str__(self) -> str:
        return f"files {self.pattern}"


class ScheduleSource(Frozen, tag="schedule"):
    """Times by a cron expression, in local time."""

    cron: str

    def __str__(self) -> str:
        return f"schedule {self.cron}"


class MetricSource(Frozen, tag="metric"):
    """A metric of a stage beyond ``limit``, where it was not in the run before, or in ``every`` run that reports it."""

    stage: str
    name: str
    limit: float
    above: bool
    every: bool = False

    def crosses(self, value: float, before: float | None) -> bool:
        """Return whether ``value`` is beyond the line, and the one before was not if that matters."""
        return self._beyond(value) and (self.every or before is None or not self._beyond(before))

    def _beyond(self, value: float) -> bool:
        return value > self.limit if self.above else value < self.limit

    def __str__(self) -> str:
        return f"{self.name} of {self.stage} {'above' if self.above else 'below'} {self.limit:g}"


class CountSource(Frozen, tag="count"):
    """Every ``reaches`` events of a source, or a total of ``reaches`` more of a metric of a stage."""

    of: str
    metric: str | None
    reaches: float

    def __str__(self) -> str:
        return f"every {self.reaches:g} of {self.of}{f'.{self.metric}' if self.metric else ''}"


EventSource = MqttSource | FileSource | ScheduleSource | MetricSource | CountSource


class ReviewQueue(Frozen):
    """A folder with files that a person reviews: ``queue.jsonl`` lists them, ``answers.jsonl`` has the answers.

    ``labels`` are the possible answers; any text if empty.
    """

    folder: str  # relative to the pipeline's folder
    labels: tuple[str, ...] = ()


class PipelineStage(Frozen):
    """A command that events start; ``budget_usd`` and ``deadline_s`` are of one run."""

    name: str
    command: tuple[str, ...]  # ``{home}`` stands for the folder of the pipeline file
    on: tuple[str, ...]  # names of events and stages
    tiers: tuple[str, ...]  # where it may run, in order of preference
    workload: str | None = None  # workload file for the estimate before any run
    most: int = MOST_EVENTS
    wait_s: float = 0.0  # how long a run waits for further events, unless it has ``most``
    running: int = 1  # concurrent runs
    waiting: int = MOST_WAITING  # events that may wait before sources are paused
    deadline_s: float | None = None
    budget_usd: float | None = None
    reads: tuple[str, ...] = ()  # folders relative to the pipeline's folder
    writes: tuple[str, ...] = ()  # such folders, which come back from another system
    tries: int = TRIES
    review: ReviewQueue | None = None

    def command_in(self, home: str) -> tuple[str, ...]:
        """Return the command where the folder of the pipeline file is ``home``."""
        return tuple(word.replace("{home}", home) for word in self.command)


class Pipeline(Frozen):
    """A checked pipeline file; ``folder`` holds its data, and ``home`` the file. Both are absolute."""

    name: str
    home: str
    folder: str
    tiers: dict[str, PipelineTier]
    events: dict[str, EventSource]
    stages: dict[str, PipelineStage]  # in an order in which no stage comes before one that starts it

    def upstream(self, name: str) -> tuple[str, ...]:
        """Return the events and stages behind an event or a stage, one step up the graph."""
        if name in self.stages:
            return self.stages[name].on
        source = self.events[name]
        if isinstance(source, MetricSource):
            return (source.stage,)
        return (source.of,) if isinstance(source, CountSource) else ()

    def fed_by(self, name: str) -> tuple[PipelineStage, ...]:
        """Return the stages that an event starts directly."""
        return tuple(stage for stage in self.stages.values() if name in stage.on)
