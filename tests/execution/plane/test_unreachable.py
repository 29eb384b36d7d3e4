"""Systems that do not answer: how often they are asked, what is stored, and what it costs the others."""

import socket
import time
from contextlib import closing, contextmanager
from pathlib import PurePosixPath
from threading import Event

import pytest

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import EventKind, Job, Place, Policy
from leadline.core.units import MIB
from leadline.execution.clock import Clock, ManualClock
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.ssh import SshTransport
from tests.support.fake_scheduler import FakeScheduler
from tests.support.plane_parts import FakeAdvisor, diagnose_by_state, retry_node_failures
from tests.support.ssh_server import why_no_sshd

LONGEST_GAP_S = 1.5
"""A step waits for half a second; the rest is for a busy machine."""


def job(key, *systems, copies=1):
    spec = JobSpec("train", ("true",), ResourceSpec(walltime_s=600.0))
    return Job(key, spec, Policy(tuple(Place(system) for system in systems), copies=copies), created_at="2026-01-01")


def plane_of(journal, schedulers, clock, copies=1):
    return Plane(
        journal, schedulers.__getitem__, FakeAdvisor(copies), diagnose=diagnose_by_state, decide=retry_node_failures,
        clock=clock,
    )  # fmt: skip


class Unreachable(FakeScheduler):
    """A scheduler that is down and counts how often it is asked."""

    tries = 0

    def _answer(self):
        self.tries += 1
        super()._answer()


@pytest.mark.parametrize("live", [False, True])
def test_an_unreachable_system_is_asked_ever_less_and_its_failures_are_one_event(tmp_path, live):
    clock = ManualClock()
    dead = Unreachable("dead", clock, down=not live)
    with PlaneJournal(tmp_path / "journal.sqlite", clock) as journal:
        plane = plane_of(journal, {"dead": dead}, clock)
        journal.add([job("a", "dead")])
        plane.step()
        dead.down, dead.tries = True, 0
        for _ in range(160):
            clock.sleep(3.0)
            plane.step()
        assert 3 <= dead.tries <= 10
        (fault,) = journal.events(kinds=[EventKind.FAULT])
        assert fault.details["times"] == plane.rhythms["dead"].failures
        assert fault.at < fault.details["last_at"] < fault.details["next_at"]
        dead.down = False
        for _ in range(60):
            clock.sleep(10.0)
            plane.step()
        assert len(dead.jobs) == 1
        assert journal.open_outages() == {}


def test_the_pause_ends_when_the_user_submits_to_that_system(tmp_path):
    clock = ManualClock()
    dead = Unreachable("dead", clock, down=True)
    with PlaneJournal(tmp_path / "journal.sqlite", clock) as journal:
        plane = plane_of(journal, {"dead": dead}, clock)
        journal.add([job("a", "dead")])
        for _ in range(100):
            clock.sleep(3.0)
            plane.step()
        dead.down, before = False, dead.tries
        plane.step()
        assert dead.tries == before
        journal.add([job("b", "dead")])
        plane.step()
        plane.step()
        assert len(dead.jobs) == 2


def test_a_new_process_continues_the_event_of_an_outage(tmp_path):
    clock = ManualClock()
    dead = Unreachable("dead", clock, down=True)
    with PlaneJournal(tmp_path / "journal.sqlite", clock) as journal:
        journal.add([job("a", "dead")])
        for _ in range(3):
            plane_of(journal, {"dead": dead}, clock).step()
            clock.sleep(60.0)
        (fault,) = journal.events(kinds=[EventKind.FAULT])
        assert fault.details["times"] == 3


class Hanging(FakeScheduler):
    """A scheduler whose answers wait for ``event``."""

    event: Event

    def _answer(self):
        assert self.event.wait(30.0)
        super()._answer()


def test_a_hanging_system_delays_no_other_and_is_called_once_at_a_time(tmp_path):
    clock = Clock()
    hanging, other = Hanging("hanging", ManualClock(), abreast=4), FakeScheduler("other", ManualClock(), abreast=4)
    hanging.event = Event()
    with PlaneJournal(tmp_path / "journal.sqlite") as journal:
        plane = plane_of(journal, {"hanging": hanging, "other": other}, clock)
        journal.add([job("a", "hanging"), job("b", "other")])
        began_s = time.monotonic()
        while not (other.query_count >= 2 and time.monotonic() - began_s > 2.0):
            step_s = time.monotonic()
            time.sleep(plane.step())
            assert time.monotonic() - step_s < LONGEST_GAP_S
        assert hanging.submitted == []
        hanging.event.set()
        while journal.get("a").attempts[0].scheduler_id is None:
            time.sleep(plane.step())
        assert len(hanging.submitted) == 1


def test_a_replica_withdrawn_during_its_submission_is_cancelled(tmp_path):
    clock, slow, quick = Clock(), Hanging("slow", ManualClock(), abreast=4), FakeScheduler("quick", ManualClock())
    slow.event = Event()
    with PlaneJournal(tmp_path / "journal.sqlite") as journal:
        plane = plane_of(journal, {"slow": slow, "quick": quick}, clock, copies=2)
        journal.add([job("a", "slow", "quick", copies=2)])
        time.sleep(plane.step())
        quick.run(quick.only())
        while not any(attempt.withdrawn for attempt in journal.get("a").attempts):
            time.sleep(plane.step())
        slow.event.set()
        while not slow.cancelled:
            time.sleep(plane.step())
        attempts = {attempt.place.system: attempt for attempt in journal.get("a").attempts}
        assert (attempts["slow"].withdrawn, attempts["quick"].begins) == (True, True)


@contextmanager
def hosts(folder):
    """Yield the ssh configuration of a host that accepts and never answers, and of one that refuses."""
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        closed.bind(("127.0.0.1", 0))
        config = folder / "config"
        config.write_text("".join(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {server.getsockname()[1]}\n"
            for name, server in (("silent", silent), ("closed", closed))
        ))  # fmt: skip
        yield config


def test_hosts_that_hang_or_refuse_do_not_delay_this_machine(tmp_path):
    if reason := why_no_sshd():
        pytest.skip(reason)
    with (
        hosts(tmp_path) as config,
        closing(LocalScheduler(tmp_path / "queue", Slots((0, 1), (), 4096 * MIB))) as local,
        PlaneJournal(tmp_path / "journal.sqlite") as journal,
    ):
        schedulers = {
            name: SlurmScheduler(
                name,
                PurePosixPath(tmp_path),
                SshTransport(name, config=config, sockets=tmp_path),
            )
            for name in ("silent", "closed")
        }
        plane = plane_of(journal, {**schedulers, "local": local}, Clock())
        journal.add([job("a", "silent"), job("b", "closed"), job("c", "local")])
        began_s, steps_s = time.monotonic(), []
        while time.monotonic() - began_s < 6.0:
            step_s = time.monotonic()
            time.sleep(plane.step())
            steps_s.append(time.monotonic() - step_s)
        assert max(steps_s) < LONGEST_GAP_S
        assert journal.get("c").state is JobState.COMPLETED
        assert journal.get("b").attempts[0].scheduler_id is None
        assert "refused" in str(journal.open_outages()["closed"].details["why"])
