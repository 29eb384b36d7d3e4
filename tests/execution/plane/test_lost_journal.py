"""A journal that is removed, emptied or replaced while jobs live: they are found again, and run once."""

import dataclasses
import sqlite3
import sys
import time
from pathlib import PurePosixPath

import pytest
from test_engine import World, job

from leadline.app.jobs.journal import journal_path, plane_dir
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import EventKind, Job, Place, Policy
from leadline.execution.clock import Clock
from leadline.execution.plane.decide import decide
from leadline.execution.plane.diagnose import diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.schedulers.slurm.parsing import read_living, records
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport
from leadline.interfaces.cli.main import main
from tests.support.fake_scheduler import FakeScheduler
from tests.support.plane_parts import FakeAdvisor, diagnose_by_state, retry_node_failures


class LosingWorld(World):
    """A plane that looks for the jobs of a lost journal after a restart."""

    def restart(self):
        if self.journal is not None:
            self.journal.close()
        self.journal = PlaneJournal(self.path, self.clock)
        self.messages = []
        self.plane = Plane(
            self.journal, {"here": self.here, "there": self.there}.__getitem__, self.counsel,
            diagnose=diagnose_by_state, decide=retry_node_failures, clock=self.clock,
            search={"here", "there"} - self.journal.searched_systems(),
        )  # fmt: skip

    def step(self, times=1, every_s=60.0):
        for _ in range(times):
            self.plane.try_step(self.messages.append)
            self.clock.sleep(every_s)


@pytest.fixture(params=[1, 4])
def world(tmp_path, request):
    made = LosingWorld(tmp_path / "plane" / "journal.sqlite", abreast=request.param)
    yield made
    made.journal.close()


def remove(path):
    for file in path.parent.glob("journal.sqlite*"):
        file.unlink()


def remove_the_file_only(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


def replace(path):
    new = path.with_name("new.sqlite")
    with PlaneJournal(new) as journal:
        journal.add([job("z")])
    new.replace(path)


def cut(path):
    """Damage the file, which its user then moves away."""
    with path.open("r+b") as stream:
        stream.truncate(5000)
    path.rename(path.with_name("damaged"))


@pytest.mark.parametrize("lose", [remove, remove_the_file_only, empty, replace, cut])
def test_a_running_plane_writes_its_jobs_again_and_submits_none_twice(world, lose):
    world.journal.add([job("a"), job("b", after=("a",))])
    world.step(2)
    world.here.run(world.here.only())
    world.step(2)
    lose(world.path)
    world.step(3)
    assert world.job().current_state is JobState.RUNNING
    assert len(world.here.submitted) == (2 if lose is replace else 1)
    assert len([message for message in world.messages if "2 open jobs were written again" in message]) == 1
    with PlaneJournal(world.path) as other:
        assert {found.key for found in other.open_jobs()} >= {"a", "b"}
        other.add([job("c")])
    for _ in range(8):
        for number in list(world.here.jobs):
            world.here.run(number)
            world.here.end(number, JobState.COMPLETED, reports=True)
        world.step(2)
    states = {name: world.job(name).state for name in "abc"}
    assert states == dict.fromkeys("abc", JobState.COMPLETED)
    assert len(world.here.submitted) == len(set(world.here.submitted))
    assert "the plane wrote the job again" in str(world.said(EventKind.FAULT))
    with sqlite3.connect(world.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.parametrize("lose", [remove, remove_the_file_only, replace])
def test_a_job_that_was_submitted_just_before_the_loss_is_not_lost(world, lose):
    world.journal.add([job("a")])
    world.step(2)
    with PlaneJournal(world.path) as other:
        other.add([job("b")])
        other.cancel(["a"])
        lose(world.path)
    world.step(3)
    assert world.job("b").attempts
    assert world.job("a").state is JobState.CANCELLED


@pytest.mark.parametrize("step", ["restore", "_make_or_check"])
def test_jobs_that_cannot_be_written_again_at_once_are_written_later(world, monkeypatch, step):
    world.journal.add([job("a")])
    world.step(2)
    remove(world.path)
    with monkeypatch.context() as context:

        def full(*_):
            raise LeadlineError("disk full")

        context.setattr(PlaneJournal, step, full)
        world.step(2)
    with PlaneJournal(world.path) as other:
        other.add([job("b")])
    world.step(2)
    assert {found.key for found in world.journal.open_jobs()} == {"a", "b"}
    assert world.job("b").attempts


def test_a_retry_does_not_wait_for_a_job_that_was_lost_with_the_journal(world):
    world.journal.add([job("a"), job("b", after=("a",)), job("c", after=("b",))])
    world.step(2)
    world.here.run(world.here.only())
    world.here.end(world.here.only(), JobState.COMPLETED, reports=True)
    world.step(4)
    world.here.run(world.here.only())
    world.step(2)
    remove(world.path)
    world.step(2)
    # The new process has only the journal, which does not have the first job.
    world.restart()
    world.here.end(world.here.only(), JobState.NODE_FAIL)
    for _ in range(6):
        world.step(2)
        for number in list(world.here.jobs):
            world.here.run(number)
            world.here.end(number, JobState.COMPLETED, reports=True)
    assert {name: world.job(name).state for name in "bc"} == dict.fromkeys("bc", JobState.COMPLETED)
    assert len(world.job("b").attempts) == 2


def test_a_job_does_not_wait_for_one_that_the_journal_does_not_have(world):
    world.journal.add([job("b", after=("a",))])
    world.step(2)
    assert world.job("b").state is JobState.CANCELLED
    assert world.job("b").reason == "job a, which it waits for, is not in the journal"


def restart_without_journal(world):
    world.journal.close()
    remove(world.path)
    world.journal = None
    world.restart()


@pytest.mark.parametrize("end", [JobState.COMPLETED, JobState.NODE_FAIL])
def test_a_new_plane_finds_living_jobs_by_their_keys_and_does_not_submit_them(world, end):
    world.journal.add([job("a")])
    world.step(2)
    world.here.run(world.here.only())
    restart_without_journal(world)
    world.step(2)
    (found,) = world.journal.open_jobs()
    assert found.current_state is JobState.RUNNING
    assert found.attempts[0].key == world.here.submitted[0]
    assert "1 jobs of a lost journal were found again at here" in world.messages
    world.here.end(world.here.only(), end, reports=True)
    world.step(6)
    assert world.job(found.key).state is end
    assert len(world.here.submitted) == 1
    world.restart()
    assert world.plane._unsearched == set()


def test_a_listing_of_squeue_yields_the_jobs_with_keys():
    rows = [
        ("17", "RUNNING", "gpu", "1:00:00", "2", "leadline:aabbccddeeff", "train-aabbccddeeff", ""),
        ("18_3", "PENDING", "cpu", "UNLIMITED", "1", "(null)", "my-sweep-001122334455", "(null)"),
        ("19", "RUNNING", "cpu", "10:00", "1", "a|comment", "foreign", "/x/runs/mine.log"),
        ("20", "COMPLETED", "cpu", "10:00", "1", "leadline:ffffffffffff", "x", ""),
        ("21", "PENDING", "cpu", "10:00", "1", "billed", "site_7", "/x y/runs/0123456789ab.log"),
        ("22_4", "RUNNING", "cpu", "10:00", "1", "billed", "site_8", "/x y/runs/ba9876543210-4.log"),
    ]
    listing = "".join("".join(f"{field}<m>" for field in row) + "\n" for row in rows)
    first, second, third, fourth = read_living(records("<m>" + listing, "<m>", 8))
    assert (first.key, first.batch, first.scheduler_id, first.index) == ("aabbccddeeff", "aabbccddeeff", "17", None)
    assert (first.spec.name, first.spec.partition, first.spec.resources.walltime_s) == ("train", "gpu", 3600.0)
    assert (second.key, second.batch, second.index, second.spec.name) == (
        "001122334455-3", "001122334455", 3, "my-sweep",
    )  # fmt: skip
    assert (third.key, third.scheduler_id, third.spec.name) == ("0123456789ab", "21", "site_7")
    assert (fourth.key, fourth.batch, fourth.index) == ("ba9876543210-4", "ba9876543210", 4)


class Unlisting(FakeScheduler):
    """A scheduler that cannot list its jobs."""

    living = None


def test_a_scheduler_that_cannot_list_its_jobs_is_named_once(world):
    world.there = Unlisting("there", world.clock, abreast=world.here.abreast)
    told = []
    for _ in range(2):
        world.restart()
        world.step(2)
        told += world.messages
    assert told == ["there cannot list its jobs: if an earlier journal was lost, its jobs there are not found again"]


def test_of_two_submissions_of_one_lost_attempt_the_running_one_is_found_again(world):
    world.journal.add([job("a")])
    world.step(2)
    number = world.here.only()
    world.here.jobs = {"7": dataclasses.replace(world.here.jobs[number]), number: world.here.jobs[number]}
    world.here.run("7")
    restart_without_journal(world)
    world.step(2)
    (found,) = world.journal.open_jobs()
    assert (found.attempts[0].scheduler_id, found.current_state) == ("7", JobState.RUNNING)
    assert "1 jobs of a lost journal were found again at here" in world.messages


@pytest.mark.parametrize("lose", [remove, remove_the_file_only, empty])
def test_an_outage_is_shown_by_the_journal_that_is_written_again(world, lose):
    world.journal.add([job("a"), job("b")])
    world.step(2)
    world.here.down = True
    world.step(4)
    assert set(world.journal.open_outages()) == {"here"}
    lose(world.path)
    world.step(12)
    (outage,) = world.journal.open_outages().values()
    assert outage.details["times"] == world.plane.rhythms["here"].failures
    assert all(world.said(EventKind.FAULT, name)[0]["journal"] == "lost" for name in "ab")
    world.here.down = False
    world.step(6)
    assert world.journal.open_outages() == {}


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_jobs_in_a_real_slurm_are_found_again(tmp_path):
    clock = Clock()
    cluster = SlurmScheduler("slurm", PurePosixPath(tmp_path / "jobs"), LocalTransport(), python=sys.executable)

    def plane_of(journal, search=()):
        return Plane(
            journal, {"slurm": cluster}.__getitem__, FakeAdvisor(), diagnose=diagnose, decide=decide, clock=clock,
            search=search,
        )  # fmt: skip

    began = tmp_path / "began"
    spec = JobSpec("train", ("sh", "-c", f"echo x >> {began}; sleep 4"), ResourceSpec(walltime_s=600.0))
    with PlaneJournal(tmp_path / "lost" / "journal.sqlite") as journal:
        journal.add([Job("j", spec, Policy((Place("slurm"),)))])
        plane = plane_of(journal)
        while not any(attempt.scheduler_id for attempt in journal.get("j").attempts):
            time.sleep(plane.step())
        key = journal.get("j").attempts[0].key
    with PlaneJournal(tmp_path / "new" / "journal.sqlite") as journal:
        plane = plane_of(journal, search=["slurm"])
        deadline_s = time.monotonic() + 90.0
        while not (journal.newest_jobs() and journal.newest_jobs()[0].closed):
            assert time.monotonic() < deadline_s, journal.events()
            time.sleep(plane.step())
        (found,) = journal.newest_jobs()
    assert (found.key, found.spec.name, found.state) == (key, "train", JobState.COMPLETED)
    assert began.read_text() == "x\n"


def test_the_command_line_says_what_was_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # the output is linked where a job is submitted
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    words = ["submit", "--on", "local", "--detach", "-y", "--time", "1m", "--cores", "1", "--memory", "1G"]
    assert main([*words, "--name", "sleeper", "--", sys.executable, "-c", "import time; time.sleep(20)"]) == 0
    remove(journal_path())
    capsys.readouterr()
    assert main(["jobs"]) == 0
    assert "some may be alive: leadline plane --once" in capsys.readouterr().err
    assert main(["plane", "--once"]) == 0
    assert "1 jobs of a lost journal were found again at local" in capsys.readouterr().err
    assert main(["jobs"]) == 0
    listed = capsys.readouterr().out
    assert "sleeper" in listed
    assert "found again at its scheduler after the journal was lost" in " ".join(listed.split())
    assert main(["cancel", "sleeper", "-y"]) == 0
    assert (plane_dir() / "local" / "jobs.sqlite").exists()
