"""Follow the file to which a job writes its progress, within bounded memory."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from leadline.core.progress import (
    MAX_SAMPLED_ITERATIONS,
    REPORTED,
    LoopProgress,
    Progress,
    ProgressLine,
    parse_progress_line,
)

POLL_BYTES = 2**20
"""Bytes of one read, so that endless output does not block the wrapper."""
FILE_BYTES = 2**26
"""Bytes of the file that are read in all."""
LINE_BYTES = 4096
FIRST = 8
PHASES = 64


@dataclass(slots=True)
class ProgressCounter:
    """One number that a job reports, with the times of its increases over all passes."""

    name: str
    total: int | None = None
    last: int | None = None
    offset: int = 0
    passes: int = 0
    points: list[tuple[float, int]] = field(default_factory=list)
    stride: int = 1
    point_count: int = 0
    first: list[tuple[float, int]] = field(default_factory=list)
    newest: tuple[float, int] | None = None
    zero_based: bool = False

    def add(self, value: int, at_s: float) -> None:
        """Add a value. A lower value starts a new pass, and an equal one is ignored."""
        if value == self.last:
            return
        if self.last is not None and value < self.last:
            self.offset += self.last + (0 if value else 1)
            self.passes += 1
        self.zero_based = value == 0 if self.last is None else self.zero_based
        self.last = value
        # Of several values at one time, the highest counts.
        if self.newest is not None and at_s <= self.newest[0]:
            point = (self.newest[0], self.offset + value)
            for points in (self.first, self.points):
                if points[-1] == self.newest:
                    points[-1] = point
            self.newest = point
            return
        self.newest = (at_s, self.offset + value)
        if len(self.first) <= FIRST:
            self.first.append(self.newest)
        if self.point_count % self.stride == 0:
            self.points.append(self.newest)
            if len(self.points) > MAX_SAMPLED_ITERATIONS:
                # Halving keeps the sample even at bounded size.
                self.points, self.stride = self.points[::2], 2 * self.stride
        self.point_count += 1

    @property
    def done(self) -> int:
        """Units done between the first report and the last one."""
        return self.newest[1] - self.first[0][1] if self.newest else 0

    @property
    def reached(self) -> int | None:
        """Units done since the job began; a first report of 0 counts from 0."""
        return self.newest[1] + self.zero_based if self.newest else None

    def level(self) -> LoopProgress | None:
        """Return the counted loop; None before the first increase."""
        if self.newest is None or self.done < 1:
            return None
        restarts = self.passes and self.name == "step"
        length = round(self.offset / self.passes) if restarts else self.total
        begin, end = self.first[0][0], self.newest[0]
        return LoopProgress(
            self.name,
            self.done,
            end - begin,
            length=length,
            passes=self.passes,
            first_s=tuple(_durations(self.first)),
            sampled_s=tuple(_durations([*self.points, self.newest])) or ((end - begin) / self.done,),
        )


def _durations(points: list[tuple[float, int]]) -> list[float]:
    """Return the time of one unit between points; points at one time count as one."""
    durations: list[float] = []
    at_s, value = points[0]
    for later_s, later_value in points[1:]:
        if later_s > at_s and later_value > value:
            durations.append((later_s - at_s) / (later_value - value))
            at_s, value = later_s, later_value
    return durations


@dataclass(slots=True)
class ProgressFile:
    """The progress of one job that began at ``start_s`` of the monotonic clock."""

    path: Path
    start_s: float
    steps: ProgressCounter = field(default_factory=lambda: ProgressCounter("step"))
    epochs: ProgressCounter = field(default_factory=lambda: ProgressCounter("epoch"))
    phases: dict[str, float] = field(default_factory=dict)
    malformed: int = 0
    timed: int = 0
    lines: int = 0
    remark: str = ""
    began_s: float | None = None
    phase: tuple[str, float] | None = None
    _offset: int = 0
    _partial_line: bytes = b""

    def poll(self) -> bool:
        """Read new content; True if there was any. Invalid content is no error of the job."""
        try:
            with self.path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                # A truncated file is not read again from the start.
                if size <= self._offset or self._offset >= FILE_BYTES:
                    return False
                written_s = min(os.fstat(stream.fileno()).st_mtime - time.time() + time.monotonic(), time.monotonic())
                stream.seek(self._offset)
                block = stream.read(POLL_BYTES)
        except OSError as error:
            self.remark = self.remark or f"the progress file could not be read ({error.strerror})"
            return False
        self._offset += len(block)
        if self._offset >= FILE_BYTES:
            self.remark = f"only the first {FILE_BYTES >> 20} MiB of the progress file were read"
        # The last line may still be incomplete.
        *whole, self._partial_line = (self._partial_line + block).split(b"\n")
        # Drop an endless line, or memory would grow with it.
        if len(self._partial_line) > LINE_BYTES:
            self.malformed, self._partial_line = self.malformed + 1, b""
        for text in whole:
            self._take(text, written_s - self.start_s)
        return bool(block)

    def _take(self, text: bytes, arrival_s: float) -> None:
        if not text.strip():
            return
        line = parse_progress_line(text.decode("utf-8", "replace")) if len(text) <= LINE_BYTES else None
        if line is None:
            self.malformed += 1
            return
        self.lines += 1
        self._count(line, self._time(line, arrival_s))

    def _time(self, line: ProgressLine, arrival_s: float) -> float:
        """Return the seconds since the job began; an impossible reported time is replaced by the arrival time."""
        if line.t is None:
            return arrival_s
        # Jobs may report seconds since their start or since the epoch.
        since_s = line.t if line.t < 1e8 else line.t - time.time() + time.monotonic() - self.start_s
        if not -1 <= since_s <= time.monotonic() - self.start_s + 1:
            return arrival_s
        self.timed += 1
        return max(since_s, 0.0)

    def _count(self, line: ProgressLine, at_s: float) -> None:
        if line.phase is not None:
            if self.phase is not None and (self.phase[0] in self.phases or len(self.phases) < PHASES):
                name, began_s = self.phase
                self.phases[name] = self.phases.get(name, 0.0) + max(at_s - began_s, 0.0)
            self.phase = (line.phase, at_s)
            self.began_s = at_s if line.phase == "train" and not self.steps.point_count else self.began_s
        for counter, value, total in (
            (self.epochs, line.epoch, line.total_epochs),
            (self.steps, line.step, line.total_steps),
        ):
            counter.total = total or counter.total
            if value is not None:
                counter.add(value, at_s)

    @property
    def units(self) -> int:
        """Completed units: steps if the job reports steps, else epochs."""
        return self.steps.done or self.epochs.done

    @property
    def working_s(self) -> float:
        """Seconds since the first unit was reported."""
        first = (self.steps.first or self.epochs.first)[:1]
        return time.monotonic() - self.start_s - first[0][0] if first else 0.0

    def progress(self, *, stopped: bool = False) -> Progress | None:
        """Return the job's reports; None without any."""
        if not self.lines:
            return Progress(REPORTED, remarks=self._remarks()) if self.malformed else None
        levels = tuple(level for level in (self.epochs.level(), self.steps.level()) if level is not None)
        inner = self.steps if self.steps.point_count else self.epochs
        return Progress(
            REPORTED,
            levels,
            startup_s=self._startup_s(inner),
            last_s=inner.newest[0] if inner.newest else None,
            steps=self.steps.reached,
            epochs=self.epochs.reached,
            total=self._total(),
            phases=dict(self.phases),
            stopped=stopped,
            method="the job's own reports, "
            + ("timed by the job" if self.timed == self.lines else "as the wrapper saw them arrive"),
            remarks=self._remarks(),
        )

    def _startup_s(self, inner: ProgressCounter) -> float | None:
        """Return when the first unit began: at ``phase=train``, or one median unit before its first report."""
        if self.began_s is not None:
            return self.began_s
        level = inner.level()
        if not inner.first or level is None or level.median_s is None:
            return None
        return max(inner.first[0][0] - level.median_s, 0.0)

    def _total(self) -> int | None:
        """Return the units of the whole job. ``total_steps`` is per epoch if steps restart in each epoch."""
        steps, epochs = self.steps, self.epochs
        if not steps.point_count:
            return epochs.total
        if not steps.passes:
            return steps.total
        return round(steps.offset / steps.passes) * epochs.total if epochs.total else None

    def _remarks(self) -> tuple[str, ...]:
        remarks = [self.remark] if self.remark else []
        if self.malformed:
            remarks.append(f"{self.malformed} lines of the progress file were ignored: they are not NAME=VALUE words")
        return tuple(remarks)
