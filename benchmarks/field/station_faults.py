"""Faults during a season of the field station, each at a share of its images."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from leadline.core.errors import LeadlineError
from leadline.pipelines.journal import PipelineJournal

if TYPE_CHECKING:
    from benchmarks.field.station import Station

CUT_S, CONTROLLER_AWAY_S, BROKER_AWAY_S, WAIT_S = 30.0, 5.0, 2.0, 60.0
"""How long the link is cut, and Slurm's controller and the broker are away; longest wait for a run to kill."""
KILL_AT, BROKER_AT, CUT_AT, CONTROLLER_AT = 0.1, 0.2, 0.5, 0.75
"""Shares of the season; the controller is killed at the first retraining after the broker, and at the latest then."""


@dataclass(frozen=True)
class Fault:
    """A fault that was injected when so many images were stored."""

    name: str
    images: int


@dataclass
class FaultInjector:
    """Injects each fault once when it is due.

    The caller's thread does it: the kernel ends daemons together with the thread that started them.
    """

    station: "Station"
    journal: PipelineJournal
    images: int
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        """List the faults that this machine allows."""
        self._open: list[tuple[str, Callable[[], bool], Callable[[], None]]] = [
            ("edge process killed", lambda: self._reached(KILL_AT), self._kill_edge),
            ("broker restarted", lambda: self._reached(BROKER_AT), self._restart_broker),
            ("Slurm controller killed and restarted", self._is_retraining, self._restart_controller),
        ]
        if self.station.link.namespace:
            cut = (f"link cut for {CUT_S:.0f} s", lambda: self._reached(CUT_AT), lambda: self.station.link.cut(CUT_S))
            self._open.append(cut)

    def inject_due(self) -> bool:
        """Inject the faults that are due; return whether others are left."""
        self._resume_nodes()
        for fault in [fault for fault in self._open if fault[1]()]:
            name, _, inject = fault
            images = self._stored()
            inject()
            self._open.remove(fault)
            self.faults.append(Fault(name, images))
            self.station.report(f"fault at {images} images: {name}")
        return bool(self._open)

    def _stored(self) -> int:
        return self.journal.source_counts().get("images", 0)

    def _reached(self, share: float) -> bool:
        return self._stored() >= share * self.images

    def _is_retraining(self) -> bool:
        retraining = any(batch.stage == "retrain" for batch in self.journal.open_batches())
        return self._reached(CONTROLLER_AT) or (retraining and self._reached(BROKER_AT))

    def _kill_edge(self) -> None:
        """Kill a labelling run, and not the process that measures it."""
        program, deadline_s = str(self.station.home / "label.py"), time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            for process in psutil.process_iter(["cmdline"]):
                if program in (process.info["cmdline"] or [])[1:2]:
                    process.send_signal(signal.SIGKILL)
                    return
            time.sleep(0.1)
        raise LeadlineError(f"no labelling run was found within {WAIT_S:.0f} s")

    def _restart_broker(self) -> None:
        self.station.broker.stop()
        time.sleep(BROKER_AWAY_S)
        self.station.broker.start()

    def _restart_controller(self) -> None:
        self.station.cluster.stop("slurmctld", sign=signal.SIGKILL)
        time.sleep(CONTROLLER_AWAY_S)
        self.station.cluster.start("slurmctld")

    def _resume_nodes(self) -> None:
        """Do what an administrator does after a crash of the controller: resume drained nodes.

        A controller that died before it saved the start of a job starts it again, and Slurm drains the node.
        """
        cluster = self.station.cluster
        for node in cluster.run(["sinfo", "-h", "-N", "-t", "drain", "-o", "%N"]).stdout.split():
            cluster.run(["scontrol", "update", f"nodename={node}", "state=resume"])
