"""This machine's own scheduler, with real jobs, real limits and processes that are killed."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import DependencyKind
from leadline.core.units import MIB
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.queue import MARK_VARIABLE, marked_processes
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.port import RequestRefused, Submission, SubmissionUncertain
from tests.support.kills import kill_at_random


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "queue"
    for process in psutil.process_iter():
        try:
            if str(tmp_path) in process.environ().get(MARK_VARIABLE, ""):
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture
def local(folder):
    scheduler = LocalScheduler(folder, Slots((0, 1), ("a", "b"), 4096 * MIB))
    yield scheduler
    scheduler.close()


def job(
    key, *command, indices=(), workdir=None, environment=None, most=None, after=(), kind=DependencyKind.OK, **resources
):
    spec = JobSpec(key, command, ResourceSpec(**resources), workdir=workdir and str(workdir),
                   environment=environment or {})  # fmt: skip
    return Submission(key, spec, indices=tuple(indices), most=most, after=after, after_kind=kind)


def shell(key, script, **more):
    return job(key, "sh", "-c", script, **more)


def until(scheduler, ids, condition=lambda status: status.state.final, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        found = scheduler.query(ids)
        if len(found) >= len(ids) and all(condition(one) for one in found.values()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def ended(scheduler, submission, **more):
    (status,) = until(scheduler, [scheduler.submit(submission)], **more).values()
    return status


def running(status):
    return status.state is JobState.RUNNING


def test_a_job_runs_to_its_end_and_is_accounted_for(local, tmp_path):
    number = local.submit(
        shell("one", "echo $MINE > made; echo said; exit 3", workdir=tmp_path, environment={"MINE": "yes"})
    )
    assert local.account([number]) == {}
    status = until(local, [number])[number]
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert (tmp_path / "made").read_text() == "yes\n"
    assert status.submitted_s <= status.started_s <= status.ended_s
    assert status.memory_bytes > 0
    assert {number: status} == local.account([number])
    assert {"one": number} == local.find(["one", "two"])
    outcome = local.reports(["one", "two"])["one"]
    assert JobState.FAILED is outcome.state
    assert local.log_tails(["one", "two"], most_bytes=5) == {"one": "said\n"}
    assert local.reports(["one"], since_s=time.time() + 1) == {}


def test_a_key_is_taken_once_however_often_it_is_handed_over(local, tmp_path):
    submission = shell("one", "echo ran >> made", workdir=tmp_path)
    number = local.submit(submission)
    assert number == local.submit(submission)
    until(local, [number])
    assert number == local.submit(submission)
    until(local, [number])
    assert (tmp_path / "made").read_text() == "ran\n"
    local.submit(replace(submission, key="two-3"))
    with pytest.raises(RequestRefused, match=r"job two-3 was already submitted"):
        local.submit(replace(submission, key="two", indices=(3,)))


def test_a_job_too_large_for_this_machine_is_refused(local):
    with pytest.raises(RequestRefused, match="it requests 3 cores, but 2 may be used"):
        local.submit(shell("big", "true", cores_per_task=3))
    with pytest.raises(InvalidInput, match="there is no command"):
        local.submit(job("empty"))
    with pytest.raises(RequestRefused, match="depends on job 77"):
        local.submit(shell("late", "true", after=("77",)))
    assert local.find(["big", "empty", "late"]) == {}


def test_slots_are_shared_out_and_a_job_that_names_no_cores_has_one(local, tmp_path):
    script = 'echo "$CUDA_VISIBLE_DEVICES $(nproc)" > "$NAME"; sleep 0.5'
    numbers = [
        local.submit(shell(name, script, workdir=tmp_path, environment={"NAME": name}, gpus_per_node=1))
        for name in ("one", "two", "three")
    ]
    found = until(local, numbers)
    assert {"a 1\n", "b 1\n"} == {(tmp_path / name).read_text() for name in ("one", "two")}
    first, second, third = (found[number] for number in numbers)
    assert third.started_s >= min(first.ended_s, second.ended_s)


def test_a_later_job_starts_first_only_if_it_delays_none(local):
    holder = local.submit(shell("holder", "sleep 3600", cores_per_task=1, walltime_s=60))
    held_s = until(local, [holder], running)[holder].started_s
    wide = local.submit(shell("wide", "true", cores_per_task=2, walltime_s=60))
    long = local.submit(shell("long", "true", walltime_s=100))
    short = local.submit(shell("short", "true", walltime_s=20))
    found = local.query([wide, long, short])
    assert [found[one].state for one in (wide, long, short)] == [JobState.PENDING, JobState.PENDING, JobState.RUNNING]
    assert found[wide].reason == "Resources"
    assert found[wide].expected_start_s == pytest.approx(held_s + 60, abs=2)
    assert found[long].expected_start_s == pytest.approx(held_s + 120, abs=2)
    following = shell("next", "true", cores_per_task=2, walltime_s=1)
    assert local.forecast_start_s(following) == pytest.approx(held_s + 220, abs=2)
    local.cancel([holder])
    assert {JobState.COMPLETED} == {one.state for one in until(local, [wide, long, short]).values()}


def test_no_start_is_forecast_behind_a_job_without_a_limit(local):
    holder = local.submit(shell("holder", "sleep 60", cores_per_task=2))
    until(local, [holder], running)
    assert local.forecast_start_s(shell("next", "true")) is None
    assert local.query([local.submit(shell("next", "true"))]).popitem()[1].expected_start_s is None


def test_a_walltime_is_enforced_and_a_running_job_gets_more_of_it(local, tmp_path):
    cut = local.submit(shell("cut", "sleep 60", walltime_s=1.5))
    more = local.submit(shell("more", "sleep 3; touch done", walltime_s=1.5, workdir=tmp_path))
    until(local, [more], running)
    with closing(LocalScheduler(local.folder, Slots((0, 1)))) as another:
        another.change_walltime(more, 30)
    found = until(local, [cut, more])
    assert (found[cut].state, found[more].state) == (JobState.TIMEOUT, JobState.COMPLETED)
    assert found[more].walltime_s == 30
    assert (tmp_path / "done").exists()
    with pytest.raises(RequestRefused, match="has ended"):
        local.change_walltime(more, 60)


def test_a_limit_can_be_cut_short_while_the_job_waits_or_runs(local):
    runs = local.submit(shell("runs", "sleep 60", cores_per_task=2, walltime_s=60))
    until(local, [runs], running)
    waits = local.submit(shell("waits", "sleep 60", walltime_s=60))
    for number in (runs, waits):
        local.change_walltime(number, 1)
    found = until(local, [runs, waits])
    assert {JobState.TIMEOUT} == {one.state for one in found.values()}
    with pytest.raises(InvalidInput, match="is not possible"):
        local.change_walltime(runs, 0)


def test_a_checkpoint_is_written_before_the_limit_and_again_before_a_later_one(local, tmp_path):
    script = "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: open('saved', 'a').write('x'))\n"
    script += "end = time.time() + 60\nwhile time.time() < end: time.sleep(0.1)"
    spec = job("listens", sys.executable, "-c", script, walltime_s=4, workdir=tmp_path)
    number = local.submit(replace(spec, checkpoint_signal="USR1", checkpoint_s=1.5))
    until(local, [number], lambda _: (tmp_path / "saved").exists())
    local.change_walltime(number, 6)
    status = until(local, [number])[number]
    assert JobState.TIMEOUT is status.state
    assert (tmp_path / "saved").read_text() == "xx"


def test_memory_is_limited_to_the_request(local):
    code = "block = bytearray(400 << 20); import time; time.sleep(60)"
    status = ended(local, job("eats", sys.executable, "-c", code, memory_bytes_per_node=200 * MIB))
    assert JobState.OUT_OF_MEMORY is status.state
    assert "requested 200 MiB" in status.reason


def test_waiting_jobs_are_cancelled_at_once_and_running_ones_terminated(local):
    runs = local.submit(shell("runs", "sleep 60", cores_per_task=2))
    until(local, [runs], running)
    waits = local.submit(shell("waits", "true"))
    local.cancel([waits, runs], waiting=True)
    assert JobState.CANCELLED is local.query([waits])[waits].state
    assert JobState.RUNNING is local.query([runs])[runs].state
    local.cancel([waits, runs])
    assert local.query([waits])[waits].started_s is None
    assert JobState.CANCELLED is until(local, [runs])[runs].state
    local.cancel([waits, runs])


def test_an_array_has_an_index_for_each_element_and_no_more_at_once_than_it_may(local, tmp_path):
    script = 'echo "$LEADLINE_INDEX $SLURM_ARRAY_TASK_ID" > "made-$LEADLINE_INDEX"; sleep 0.3'
    array = local.submit(shell("many", script, indices=(3, 5, 8), most=1, workdir=tmp_path))
    found = until(local, [f"{array}_{index}" for index in (3, 5, 8)])
    assert {f"{array}_3", f"{array}_5", f"{array}_8"} == set(found) == set(local.query([array]))
    assert [(tmp_path / f"made-{index}").read_text() for index in (3, 5, 8)] == ["3 3\n", "5 5\n", "8 8\n"]
    times = sorted((one.started_s, one.ended_s) for one in found.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(times))
    assert {"many-3", "many-8"} == set(local.reports(["many-3", "many-8"]))


def test_jobs_wait_for_those_before_and_end_where_these_end_otherwise(local):
    first = local.submit(shell("first", "sleep 0.5"))
    bad = local.submit(shell("bad", "sleep 0.5; false"))
    then = local.submit(shell("then", "true", after=(first,)))
    never = local.submit(shell("never", "true", after=(first, bad)))
    anyway = local.submit(shell("anyway", "true", after=(bad,), kind=DependencyKind.ANY))
    mend = local.submit(shell("mend", "true", after=(bad,), kind=DependencyKind.NOT_OK))
    needless = local.submit(shell("needless", "true", after=(first,), kind=DependencyKind.NOT_OK))
    assert local.query([then])[then].reason == "Dependency"
    found = until(local, [first, bad, then, never, anyway, mend, needless])
    assert {JobState.COMPLETED} == {found[one].state for one in (first, then, anyway, mend)}
    assert {JobState.CANCELLED} == {found[one].state for one in (never, needless)}
    assert found[never].reason == "DependencyNeverSatisfied"
    assert found[then].started_s >= found[first].ended_s


def test_a_job_whose_wrapper_is_killed_has_lost_its_node_and_is_not_run_again(local, tmp_path):
    number = local.submit(shell("one", "echo ran >> made; sleep 60", workdir=tmp_path))
    until(local, [number], lambda _: (tmp_path / "made").exists())
    mark = str(local.folder / "runs" / "one-1.json")
    wrapper = next(one for one in marked_processes(mark) if "leadline.execution.wrapper" in one.cmdline())
    wrapper.kill()
    assert JobState.NODE_FAIL is until(local, [number])[number].state
    assert marked_processes(mark) == []
    assert (tmp_path / "made").read_text() == "ran\n"


def test_a_second_process_takes_up_where_the_first_one_ended(local, folder, tmp_path):
    numbers = [local.submit(shell(f"job{at}", "sleep 1; echo ran >> made", workdir=tmp_path)) for at in range(3)]
    until(local, numbers[:2], running)
    local.close()
    second = LocalScheduler(folder, Slots((0, 1), (), 4096 * MIB))
    assert dict(zip(("job0", "job1", "job2"), numbers, strict=True)) == second.find(["job0", "job1", "job2"])
    assert {JobState.COMPLETED} == {one.state for one in until(second, numbers).values()}
    assert (tmp_path / "made").read_text() == "ran\nran\nran\n"
    second.close()


def test_two_that_drive_in_turn_start_nothing_twice_and_not_more_than_there_is_room_for(local, folder, tmp_path):
    other = LocalScheduler(folder, Slots((0, 1), (), 4096 * MIB))
    script = "echo b >> log; sleep 0.2; echo e >> log"
    numbers = [(local, other)[at % 2].submit(shell(f"job{at}", script, workdir=tmp_path)) for at in range(8)]
    deadline = time.monotonic() + 60
    while not all(one.state.final for one in (*local.query(numbers).values(), *other.query(numbers).values())):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    log, at_once = (tmp_path / "log").read_text().split(), 0
    assert (log.count("b"), log.count("e")) == (8, 8)
    for one in log:
        at_once += 1 if one == "b" else -1
        assert at_once <= 2
    other.close()


def test_a_folder_that_cannot_be_used_is_a_scheduler_that_cannot_be_reached(tmp_path):
    (tmp_path / "jobs.sqlite").write_text("not a database, whatever its name says: long enough to be looked at")
    with pytest.raises(SchedulerUnreachable, match="is damaged or not a journal"):
        LocalScheduler(tmp_path, Slots((0,)))


def test_a_clock_that_was_set_takes_no_running_job_for_a_lost_one(local, folder, tmp_path):
    number = local.submit(shell("one", "sleep 2; echo ran >> made", workdir=tmp_path))
    until(local, [number], running)
    local.close()
    with closing(sqlite3.connect(folder / "jobs.sqlite")) as journal, journal:
        journal.execute("UPDATE job SET pid_started = pid_started - 3600, started_at = '2030-01-01T00:00:00+00:00'")
    with closing(LocalScheduler(folder, Slots((0, 1)))) as second:
        assert JobState.RUNNING is second.query([number])[number].state
        assert JobState.COMPLETED is until(second, [number])[number].state
    assert (tmp_path / "made").read_text() == "ran\n"


@pytest.fixture
def small_disk(folder):
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path):
    with pytest.raises(OSError, match="No space"):
        path.write_bytes(b"x" * 4 * MIB)


def test_a_full_disk_loses_nothing_and_repeats_nothing(small_disk, tmp_path):
    with closing(LocalScheduler(small_disk, Slots((0, 1)))) as local:
        number = local.submit(shell("one", "echo ran >> made; sleep 1", workdir=tmp_path))
        until(local, [number], running)
        fill(small_disk / "filling")
        with pytest.raises(SubmissionUncertain, match="cannot be used"):
            local.submit(shell("two", "echo two >> made", workdir=tmp_path, environment={"LONG": "x" * 100_000}))
        assert local.find(["two"]) == {}
        time.sleep(2.5)
        assert JobState.RUNNING is local.query([number])[number].state
        (small_disk / "filling").unlink()
        assert JobState.COMPLETED is until(local, [number])[number].state
        second = local.submit(shell("two", "echo two >> made", workdir=tmp_path))
        assert JobState.COMPLETED is until(local, [second])[second].state
    assert (tmp_path / "made").read_text() == "ran\ntwo\n"


DIES = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_scheduler as t
from leadline.execution.schedulers.local.submissions import LocalSubmissions

def dying(change):
    def died(*given, **more):
        if sys.argv[4] == "after":
            change(*given, **more)
        os.kill(os.getpid(), 9)
    return died

setattr(LocalSubmissions, sys.argv[5], dying(getattr(LocalSubmissions, sys.argv[5])))
local = t.LocalScheduler(Path(sys.argv[2]), t.Slots((0, 1)))
t.until(local, [local.submit(t.shell("one", "echo ran >> made", workdir=sys.argv[3]))])
"""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["begin", "attach", "settle"])
def test_a_driver_that_dies_around_any_of_its_steps_loses_and_repeats_nothing(folder, tmp_path, moment, step):
    words = [sys.executable, "-c", DIES, str(Path(__file__).parent), str(folder), str(tmp_path), moment, step]
    died = subprocess.run(words, check=False)
    assert died.returncode == -signal.SIGKILL
    with closing(LocalScheduler(folder, Slots((0, 1)))) as local:
        number = local.find(["one"])["one"]
        assert JobState.COMPLETED is until(local, [number])[number].state
    assert (tmp_path / "made").read_text() == "ran\n"


DRIVER = """
import sys
from itertools import pairwise
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_scheduler as t
local = t.LocalScheduler(Path(sys.argv[2]), t.Slots((0, 1)))
ids = [local.submit(t.shell(f"job{at}", f"echo {at} >> made; sleep 0.1", workdir=sys.argv[3])) for at in range(12)]
t.until(local, ids)
"""


def test_nothing_is_lost_or_run_twice_when_the_driver_is_killed_at_random_moments(folder, tmp_path):
    words = [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(folder), str(tmp_path)]
    kill_at_random(words, seed=3, within_s=(0.3, 0.8))
    assert sorted((tmp_path / "made").read_text().split(), key=int) == [str(at) for at in range(12)]
    local = LocalScheduler(folder, Slots((0, 1)))
    states = [one.state for one in local.query(list(local.find([f"job{at}" for at in range(12)]).values())).values()]
    assert states == [JobState.COMPLETED] * 12
    local.close()
