"""The plane under test: a process that is killed and restarted, and must not end by itself."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from benchmarks.plane.host import CANNOT_BEGIN, READY, HostSettings, prepare
from leadline.execution.processes import start_process

LONG_S = 86_400.0


@dataclass(slots=True)
class PlaneProcess:
    """The plane of a folder in a process of its own.

    Attributes:
        ends: Last words of processes that ended by themselves.
        variables: A user's own variables, from the next start on.
        refused: Number of processes that could not begin, as the disk was full; they are started again.
    """

    folder: Path
    environment: Mapping[str, str]
    ends: list[str] = field(default_factory=list)
    refused: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    _process: "Popen[bytes] | None" = None

    @property
    def pid(self) -> int:
        """Return the id of the running or the last process."""
        return self._process.pid if self._process else 0

    def settle_for(self, settings: HostSettings) -> None:
        """Apply settings from the next start on."""
        prepare(self.folder, settings)

    def start(self) -> None:
        """Start the process unless it runs."""
        self.look()
        if self._process is None:
            argv = [sys.executable, "-P", "-m", "benchmarks.plane.host", str(self.folder), str(LONG_S)]
            with (self.folder / "plane.log").open("ab") as log:
                self._process = start_process(
                    argv,
                    env={**self.environment, **self.variables},
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                    own_session=True,
                )

    def runs(self) -> bool:
        """Return whether the process runs."""
        self.look()
        return self._process is not None

    def has_jobs(self) -> bool:
        """Return whether the running process has read its jobs."""
        ready = self.folder / READY
        return self.runs() and ready.exists() and ready.read_text(encoding="ascii") == str(self.pid)

    def look(self) -> None:
        """Record the process if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            if self._process.returncode == CANNOT_BEGIN:
                self.refused += 1
                self._process = None
                return
            log = (self.folder / "plane.log").read_text(encoding="utf-8", errors="replace")
            self.ends.append(f"exit code {self._process.returncode} at {time.time():.0f}: {log[-600:]}")
            self._process = None

    def kill(self) -> bool:
        """Kill the process alone, not what it has started; return False if it did not run."""
        self.look()
        if self._process is None:
            return False
        self._process.kill()
        self._process.wait()
        self._process = None
        return True
