"""A job moves with its checkpoint: whole or not at all, written down, and over a real sshd."""

import sqlite3
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from test_engine import HERE, THERE, World, job

from leadline.app.jobs.plane import estimate_staging_s
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.core.plane import Action, Decision, EventKind, Policy
from leadline.core.units import MIB
from leadline.execution.plane.stager import (
    MAX_TRIES,
    CheckpointRoute,
    CopyRequest,
    check_folder_name,
    copy_checkpoint,
    probe_path,
)
from leadline.execution.transport.port import PROBE_BYTES, LocalTransport
from leadline.execution.transport.ssh import SshTransport
from tests.support.plane_parts import retry_node_failures
from tests.support.ssh_server import HOST, ssh_server, why_no_sshd


def move(situation):
    if situation.attempt.place == HERE and situation.attempt.state is JobState.RUNNING:
        return Decision(Action.MOVE, "it ends sooner there", place=THERE)
    return retry_node_failures(situation)


class Moving(World):
    """Two desks with folders of their own; the job here has written a checkpoint, and is to move."""

    def __init__(self, folder, *, policy=None):
        super().__init__(folder / "journal.sqlite", decide=move)
        for desk in (self.here, self.there):
            desk.folder = PurePosixPath(folder / desk.name)
        self.mine, self.target = Path(self.here.folder), Path(self.there.folder)
        (self.mine / "kept" / "deep").mkdir(parents=True)
        (self.mine / "kept" / "deep" / "weights").write_bytes(b"w" * MIB)
        (self.mine / "kept" / "step").write_text("7")
        policy = policy or Policy((HERE, THERE), resumes=True, checkpoint_folder="kept")
        self.journal.add([job("a", policy=policy)])
        self.step()

    def leave(self):
        self.here.run(self.here.only())
        for _ in range(12):
            if self.here.jobs:
                self.step()
        assert self.here.jobs == {}

    def arrive(self, patience_s=20.0):
        """Step until the job is submitted there, or that takes too long."""
        deadline_s = time.monotonic() + patience_s
        while not self.there.submitted and time.monotonic() < deadline_s:
            self.step(every_s=20.0)
            time.sleep(0.02)
        return bool(self.there.submitted)


@pytest.fixture
def moving(tmp_path):
    world = Moving(tmp_path)
    yield world
    world.journal.close()


def test_the_checkpoint_is_there_before_the_job_is_submitted(moving):
    seen, submit = [], moving.there.submit

    def look(submission):
        seen.append((moving.target / "kept" / "step").read_text())
        return submit(submission)

    moving.there.submit = look
    moving.leave()
    assert moving.arrive()
    assert seen == ["7"]
    (said,) = moving.said(EventKind.STAGED)
    assert (said["from"], said["to"], said["moved_bytes"]) == ("here", "there", MIB + 1)
    assert said["elapsed_s"] > 0
    assert [path.name for path in moving.target.iterdir()] == ["kept"]


def test_an_older_checkpoint_there_gives_way_whole(moving):
    (moving.target / "kept").mkdir(parents=True)
    (moving.target / "kept" / "stale").write_text("1")
    source = moving.job().attempts[0].key
    (moving.target / f".kept.{source}.another.arriving").mkdir()  # of a process that was killed
    moving.leave()
    assert moving.arrive()
    assert sorted(path.name for path in (moving.target / "kept").iterdir()) == ["deep", "step"]
    assert [path.name for path in moving.target.iterdir()] == ["kept"]


def test_a_copy_that_breaks_off_is_never_used_and_is_made_again(moving):
    class Breaks:
        def __getattr__(self, name):
            return getattr(LocalTransport(), name)

        where = "there"
        whole = False

        def send(self, source, target, *, timeout_s):
            if not self.whole:
                Path(target).mkdir(parents=True, exist_ok=True)
                (Path(target) / "half").write_text("h")
                raise LeadlineError("not all was copied")
            (Path(target) / "half").unlink()
            return LocalTransport().send(source, target, timeout_s=timeout_s)

    moving.there.transport = Breaks()
    moving.leave()
    assert not moving.arrive(2.0)
    assert not (moving.target / "kept").exists()
    assert "could not be copied there: not all was copied" in str(moving.said(EventKind.FAULT))
    assert moving.said(EventKind.STAGED) == []
    moving.there.transport.whole = True
    assert moving.arrive()
    assert (moving.target / "kept" / "step").read_text() == "7"


class Refuses:
    """A system whose disk takes nothing."""

    where = "there"

    def __getattr__(self, name):
        return getattr(LocalTransport(), name)

    def send(self, *_, **__):
        raise LeadlineError("no space is left there")


@pytest.mark.parametrize("places", [(THERE,), (THERE, HERE)])
def test_a_copy_that_always_fails_leads_to_the_next_place_or_to_the_reason(tmp_path, places):
    moving = Moving(tmp_path, policy=Policy((HERE, THERE), resumes=True, checkpoint_folder="kept"))
    moving.leave()
    kept = moving.job()
    moving.there.transport = Refuses()
    moving.journal.close()
    document = to_json(replace(kept, policy=replace(kept.policy, places=places), attempts=(), plan=None))
    with sqlite3.connect(moving.path) as connection:
        connection.execute("UPDATE job SET document = ?", (document,))
    connection.close()
    moving.journal = None
    moving.restart()
    submitted_here = len(moving.here.submitted)
    for at in range(400):
        if at == 100:
            moving.restart()
        moving.step(every_s=60.0)
        time.sleep(0.002)
        if moving.job().closed or len(moving.here.submitted) > submitted_here:
            break
    (fault,) = moving.said(EventKind.FAULT)
    assert (fault["place"], fault["times"]) == ("there", MAX_TRIES)
    assert "no space is left there" in fault["why"]
    assert moving.there.submitted == []
    if HERE in places:
        sent = moving.here.jobs[moving.here.only()].submission.spec
        assert (sent.system, sent.partition) == (HERE.system, HERE.partition)
    else:
        assert moving.job().state is JobState.FAILED
        assert "it has no other place" in moving.job().reason
        assert "no space is left there" in moving.job().reason
    moving.journal.close()


def test_a_plane_killed_during_a_copy_starts_over_and_submits_once(moving):
    waits, sent = threading.Event(), []

    class Slow:
        def __getattr__(self, name):
            return getattr(LocalTransport(), name)

        where = "there"

        def send(self, source, target, *, timeout_s):
            sent.append(target)
            if len(sent) == 1:
                waits.wait(20)
                raise LeadlineError("the thread of a process that was killed")
            return LocalTransport().send(source, target, timeout_s=timeout_s)

    moving.there.transport = Slow()
    moving.leave()
    for _ in range(100):
        if not sent:
            moving.step(every_s=1.0)
            time.sleep(0.02)
    assert len(sent) == 1
    moving.restart()
    waits.set()
    assert moving.arrive()
    assert len(sent) == 2
    assert len(moving.there.submitted) == 1
    assert len(moving.said(EventKind.STAGED)) == 1


def test_a_copied_checkpoint_is_not_copied_again(moving):
    moving.leave()
    deadline_s = time.monotonic() + 20
    moving.there.lose_answers = "before"
    while not moving.said(EventKind.STAGED) and time.monotonic() < deadline_s:
        moving.step(every_s=1.0)
        time.sleep(0.02)
    moving.restart()
    moving.there.lose_answers = ""
    assert moving.arrive()
    assert len(moving.said(EventKind.STAGED)) == 1


def test_a_job_without_a_checkpoint_moves_without_one(tmp_path):
    world = Moving(tmp_path, policy=Policy((HERE, THERE), resumes=True, checkpoint_folder="none"))
    world.leave()
    assert world.arrive()
    assert [said["moved_bytes"] for said in world.said(EventKind.STAGED)] == [0]
    world.journal.close()


def test_copy_times_are_only_predicted_from_copies_between_the_same_systems(moving):
    def known():
        return estimate_staging_s(
            moving.job(),
            "there",
            journal=moving.journal,
            request=lambda job, source, system: CopyRequest(2.0 * MIB, None),  # noqa: ARG005
        )

    assert known().high == 0.0
    moving.leave()
    unknown = known()
    assert unknown.high > 100 * unknown.low  # nothing is known of the path
    assert moving.arrive()
    (made,) = moving.journal.events(job="a", kinds=[EventKind.STAGED])
    with moving.journal.transaction() as connection:
        connection.execute(
            "INSERT INTO event (at, kind, job, attempt, said) SELECT at, kind, 'b', attempt, said FROM event "
            "WHERE number = ?", (made.number,),
        )  # fmt: skip
    measured = known()
    assert measured.point == pytest.approx(2 * made.details["elapsed_s"], rel=0.5)
    assert measured.high < unknown.high


def test_the_size_of_a_checkpoint_is_asked_in_the_background(moving):
    source = moving.job().attempts[0]
    assert moving.plane.stager.request(moving.job(), source, "there") is None
    moving.leave()
    source = moving.job().attempts[0]
    deadline_s = time.monotonic() + 20
    while moving.plane.stager.request(moving.job(), source, "there") is None and time.monotonic() < deadline_s:
        time.sleep(0.02)
    asked = moving.plane.stager.request(moving.job(), source, "there")
    assert asked.size_bytes == pytest.approx(MIB, rel=0.05)
    assert asked.probe is None  # both are this machine


@pytest.mark.parametrize("name", ["/etc", "..", "a/../../b", ".", "", "a\0b"])
def test_a_checkpoint_folder_must_be_below_the_job_folder(name):
    with pytest.raises(InvalidInput, match="not a folder below the job's own"):
        check_folder_name(name)


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    if reason := why_no_sshd():
        pytest.skip(reason)
    with (
        ssh_server(tmp_path_factory.mktemp("ssh")) as running,
        tempfile.TemporaryDirectory(prefix="s") as sockets,  # a socket's path is short
    ):
        one = SshTransport(HOST, config=running.config, sockets=Path(sockets))
        yield one
        one.close()


@pytest.mark.parametrize("ends", [("far",), ("far", "far")])
def test_a_path_over_ssh_is_probed(far, ends):
    source, target = (far, far) if len(ends) == 2 else (LocalTransport(), far)
    probe = probe_path(source, target)
    assert probe.moved_bytes == PROBE_BYTES
    assert 0 < probe.round_trip_s < 10
    assert 0 < probe.elapsed_s < 10
    assert probe_path(LocalTransport(), LocalTransport()) is None


@pytest.mark.parametrize("ends", ["from there", "to there", "from there to there"])
@pytest.mark.parametrize("rsync", [True, False])
def test_a_checkpoint_is_copied_over_ssh_with_bytes_and_seconds_reported(far, tmp_path, ends, rsync):
    if not rsync:
        far._rsync = False
    old, new = tmp_path / "old" / "kept a", tmp_path / "new" / "kept a"
    old.mkdir(parents=True)
    (old / "weights").write_bytes(b"w" * MIB)
    source, target = (
        (far if ends.startswith("from") else LocalTransport()),
        (far if ends.endswith("to there") else LocalTransport()),
    )
    way = CheckpointRoute(source, PurePosixPath(old), target, PurePosixPath(new))
    copied = copy_checkpoint(way, "k1", tmp_path / "between")
    again = copy_checkpoint(way, "k1", tmp_path / "between")
    far._rsync = None
    assert (copied.moved_bytes, again.moved_bytes) == (MIB, MIB)
    assert copied.elapsed_s > 0
    assert (new / "weights").read_bytes() == b"w" * MIB
    assert [path.name for path in new.parent.iterdir()] == ["kept a"]
    assert not (tmp_path / "between").exists()
