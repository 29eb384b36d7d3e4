"""The plane under test: a process of its own that is killed, started again, and whose own end is a mistake."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from benchmarks.plane.host import CANNOT_BEGIN, HostSettings, prepare
from leadline.execution.processes import start_process

LONG_S = 86_400.0


@dataclass(slots=True)
class PlaneProcess:
    """Runs the plane of a folder under ``environment``; ``ends`` are the words of those that ended by themselves.

    One that cannot begin, as its disk is full, says so and is started again; these are counted (``refused``).
    """

    folder: Path
    environment: Mapping[str, str]
    ends: list[str] = field(default_factory=list)
    refused: int = 0
    _process: "Popen[bytes] | None" = None

    @property
    def pid(self) -> int:
        """The process that runs, or ran last."""
        return self._process.pid if self._process else 0

    def settle_for(self, settings: HostSettings) -> None:
        """Run it so from the next start on."""
        prepare(self.folder, settings)

    def start(self) -> None:
        """Start it, unless it runs."""
        self.look()
        if self._process is None:
            argv = [sys.executable, "-P", "-m", "benchmarks.plane.host", str(self.folder), str(LONG_S)]
            with (self.folder / "plane.log").open("ab") as said:
                self._process = start_process(
                    argv, env=self.environment, stdout=said.fileno(), stderr=said.fileno(), own_session=True
                )

    def look(self) -> None:
        """Note it if the process ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            if self._process.returncode == CANNOT_BEGIN:
                self.refused += 1
                self._process = None
                return
            log = (self.folder / "plane.log").read_text(encoding="utf-8", errors="replace")
            self.ends.append(f"exit code {self._process.returncode} at {time.time():.0f}: {log[-600:]}")
            self._process = None

    def kill(self) -> bool:
        """Kill it, and it alone: what it has started goes on; ``False`` if it did not run."""
        self.look()
        if self._process is None:
            return False
        self._process.kill()
        self._process.wait()
        self._process = None
        return True
