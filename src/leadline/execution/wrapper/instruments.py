"""Progress file and hook that the wrapper adds to a command, and the measurements from them."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from leadline.core.frozen import Frozen
from leadline.core.progress import Progress
from leadline.core.runs import Measurement
from leadline.execution.wrapper.hook_report import hook_stopped, read_hook_progress
from leadline.execution.wrapper.progress import ProgressFile
from leadline.progress import VARIABLE

HOOK_FOLDER = Path(__file__).parents[1] / "hook" / "site"
STOP_WAIT_S = 5.0
"""Seconds that a script may take to end after the hook raised ``SystemExit`` in it."""


class ProbeLimit(Frozen):
    """End of a probe: after so many units of work or so many seconds of them; without both, never."""

    units: int | None = None
    time_s: float | None = None

    def is_reached(self, units: int, time_s: float) -> bool:
        """True if the work done reaches the limit."""
        return (self.units is not None and units >= self.units) or (
            self.time_s is not None and units > 0 and time_s >= self.time_s
        )


@dataclass(slots=True)
class Instruments:
    """The progress file of one command, and with ``hook`` the watcher of Python's loops."""

    folder: Path
    probe_limit: ProbeLimit = field(default_factory=ProbeLimit)
    hook: bool = False
    file: ProgressFile = field(init=False)
    stopped: bool = False
    stop_requested_s: float | None = None

    def __post_init__(self) -> None:
        path = self.folder / "progress"
        path.touch()
        self.file = ProgressFile(path, time.monotonic())

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the command."""
        variables = {VARIABLE: str(self.file.path)}
        if self.hook:
            paths = [str(HOOK_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
            variables |= {"LEADLINE_HOOK": str(self.folder), "PYTHONPATH": os.pathsep.join(paths)}
            if self.probe_limit.units:
                variables["LEADLINE_HOOK_UNITS"] = str(self.probe_limit.units)
            if self.probe_limit.time_s:
                variables["LEADLINE_HOOK_TIME_S"] = repr(self.probe_limit.time_s)
        return variables

    def poll(self) -> bool:
        """Read new progress; True if the probe limit has just been reached."""
        self.file.poll()
        if self.stopped:
            return False
        self.stopped = self.probe_limit.is_reached(self.file.units, self.file.working_s) or self._ignored_the_hook()
        return self.stopped

    def _ignored_the_hook(self) -> bool:
        """True if the hook told the script to end and it continues."""
        if not self.hook or self.probe_limit == ProbeLimit() or not hook_stopped(self.folder):
            return False
        # Some scripts catch SystemExit, so the wrapper ends them after a while.
        self.stop_requested_s = self.stop_requested_s or time.monotonic()
        return time.monotonic() - self.stop_requested_s > STOP_WAIT_S

    def finish(self) -> None:
        """Read the remaining progress after the command's end."""
        while self.file.poll():
            pass

    def progress(self) -> Progress | None:
        """Return the command's progress from its own reports or, without them, from the hook."""
        reported = self.file.progress(stopped=self.stopped)
        watched = read_hook_progress(self.folder, self.file.start_s) if self.hook else None
        # The job's own reports are exact, so they come before the hook's.
        if watched is None or (reported is not None and reported.levels):
            return reported
        return watched if reported is None else replace(watched, remarks=(*watched.remarks, *reported.remarks))


@contextmanager
def temporary_instruments(probe_limit: ProbeLimit, *, hook: bool) -> Iterator[Instruments | None]:
    """Yield instruments in a temporary folder, or None if it cannot be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="leadline-job-", ignore_cleanup_errors=True)
    except OSError:
        yield None
        return
    with folder as name:
        yield Instruments(Path(name), probe_limit, hook)


def progress_measurements(progress: Progress | None) -> dict[str, Measurement]:
    """Return startup, work, unit, step, epoch and phase figures of a command, as far as known."""
    if progress is None:
        return {}
    measurements, method = {}, f"{progress.source}: {progress.method}"
    if progress.startup_s is not None:
        measurements["startup_s"] = Measurement(progress.startup_s, "s", f"start to the first unit of work; {method}")
    if (unit := progress.unit) is not None:
        outermost = progress.levels[0]
        measurements["work_s"] = Measurement(outermost.total_s, "s", f"time in all of {outermost.name}; {method}")
        if unit.median_s is not None:
            measurements["unit_s"] = Measurement(unit.median_s, "s", f"median time of one {unit.name}; {method}")
        measurements["units"] = Measurement(unit.count, "", f"units of work seen from begin to end; {method}")
    for name, count in (("steps", progress.steps), ("epochs", progress.epochs)):
        if count is not None:
            measurements[name] = Measurement(count, "", method)
    for name, phase_s in progress.phases.items():
        measurements[f"phase_{name}_s"] = Measurement(phase_s, "s", f"time in the phase that the job names; {method}")
    return measurements
