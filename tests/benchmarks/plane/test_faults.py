"""The count of what became of jobs under faults, the faults themselves, and a short campaign on a real Slurm."""

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.plane import fault_staff
from benchmarks.plane.fault_causes import Outage, Verdict, wrong_causes
from benchmarks.plane.fault_disk import FileSizes, OwnFileSystem, journal_disk
from benchmarks.plane.fault_jobs import (
    CANCELLED,
    FAILED_CODE,
    LONG,
    PLACE,
    Death,
    FaultTally,
    LedgerRun,
    design_jobs,
    read_ledger,
    tally_faults,
)
from benchmarks.plane.fault_journal import JournalSwap
from benchmarks.plane.fault_kinds import FULL, SSH_PART, Fault, strike_times
from benchmarks.plane.fault_shims import first_on_path, make_shims
from benchmarks.plane.fault_staff import SiteStaff
from benchmarks.plane.faults import LEAST_FAULTS, fault_rows
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState as S
from leadline.core.plane import Attempt, EventKind
from leadline.core.plane import FailureCause as C
from leadline.core.processes import CompletedProcess
from leadline.execution.clock import iso_utc
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from leadline.execution.plane.recovery import FOUND_AGAIN
from leadline.execution.processes import run_process
from tests.support import slurm_cluster, ssh_server

KINDS = {"well": (S.COMPLETED, 0), "fails": (S.FAILED, FAILED_CODE), "cannot follow": (S.CANCELLED, None)}


def designed(kind, *, measured=False):
    """Return a designed job of a kind."""
    for seed in range(50):
        for wave in design_jobs(50, "ledger", random.Random(seed), memory_held=True):  # noqa: S311 - not secret
            for one in wave:
                if one.kind == kind and one.job.policy.measured is measured:
                    return one
    raise AssertionError(kind)


def counted(kind, state, *runs, deaths=(), measured=False):
    """Return how many are lost, ran twice and have the wrong state, of one job."""
    design = designed(kind, measured=measured)
    of_it = [replace(run, job=design.job.key) for run in runs]
    found = tally_faults([design], {design.job.key: state}, of_it, deaths)
    return len(found.lost), len(found.twice), len(found.wrong)


def causes(kind, state, cause, *, evidence="", staff=None, outages=(), silences=(), started_s=None):
    """Return how many causes are wrong, of one attempt on node n1 that got its verdict at 1,000 s."""
    design = designed(kind)
    started_at = None if started_s is None else iso_utc(started_s)
    attempt = Attempt("a", design.job.key, 1, PLACE, design.job.spec.resources, started_at=started_at, node="n1")
    jobs = {design.job.key: replace(design.job, attempts=(attempt,))}
    verdicts = {"a": Verdict("a", state, cause, evidence, 1000.0)}
    return len(wrong_causes([design], jobs, verdicts, {"a": staff} if staff else {}, outages, silences))


def run(began_s, ended_s=None, code=None, node="n1"):
    return LedgerRun("", f"attempt{began_s}", node, began_s, ended_s, code)


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_ends_as_designed_is_counted_as_nothing(kind):
    state, code = KINDS[kind]
    runs = [] if code is None else [run(1.0, 2.0, code)]
    assert counted(kind, state, *runs) == (0, 0, 0)


@pytest.mark.parametrize(
    ("state", "runs", "expected"),
    [
        (None, [], (1, 0, 0)),
        (S.PENDING, [run(1.0, 2.0, 0)], (1, 0, 0)),
        (S.UNKNOWN, [run(1.0, 2.0, 0)], (1, 0, 0)),
        (S.COMPLETED, [], (1, 0, 0)),
        (S.COMPLETED, [run(1.0)], (1, 0, 0)),
        (S.COMPLETED, [run(1.0, 2.0, 143)], (1, 0, 0)),
        (S.FAILED, [run(1.0, 2.0, 0)], (0, 0, 1)),
        (S.COMPLETED, [run(1.0, 3.0, 0), run(2.0, 4.0, 0)], (0, 1, 0)),
        (S.COMPLETED, [run(1.0), run(2.0, 4.0, 0)], (0, 1, 0)),
        (S.COMPLETED, [run(1.0), run(60.0, 64.0, 0)], (0, 0, 0)),
        (S.COMPLETED, [run(1.0, 2.0, 0), run(3.0, 4.0, 0)], (0, 1, 0)),
        (S.COMPLETED, [run(1.0, 2.0, 137), run(3.0, 4.0, 0)], (0, 0, 0)),
    ],
)
def test_what_is_lost_runs_twice_or_ends_wrong_is_counted(state, runs, expected):
    assert expected == counted("well", state, *runs)


def test_what_failed_by_itself_or_waits_for_it_must_not_be_started_again():
    again = run(1.0, 2.0, FAILED_CODE), run(3.0, 4.0, FAILED_CODE)
    assert counted("fails", S.FAILED, *again) == (0, 1, 0)
    assert counted("cannot follow", S.CANCELLED, run(1.0, 2.0, 0)) == (0, 1, 0)


@pytest.mark.parametrize("measured", [False, True])
def test_only_the_death_of_its_node_excuses_another_start(measured):
    def twice(*runs, deaths):
        return counted("well", S.COMPLETED, *runs, deaths=deaths, measured=measured)[1]

    cut_off = run(1.0), run(5.0, 6.0, 0)
    assert twice(*cut_off, deaths=[Death("n1", 3.0)]) == 0
    assert twice(*cut_off, deaths=[Death("n1", 0.5)]) == 1
    assert twice(*cut_off, deaths=[Death("n2", 3.0)]) == 1
    assert twice(*cut_off, deaths=[Death("n1", 5.5)]) == 1
    unseen = run(1.0, 2.0, 0), run(9.0, 10.0, 0)
    assert twice(*unseen, deaths=[Death("n1", 2.5)]) == 0
    assert int(measured) == twice(*unseen, deaths=[Death("n1", 5.0)])  # a measured end lies on the disk by then


def test_a_cancelled_job_may_start_again_after_its_node_died():
    design = replace(designed(CANCELLED), state=S.CANCELLED, code=None)
    runs = [replace(run(at_s, node=node), job=design.job.key) for at_s, node in ((1.0, "n1"), (200.0, "n2"))]
    found = tally_faults([design], {design.job.key: S.CANCELLED}, runs, [Death("n1", 3.0)])
    assert found == FaultTally((), (), ())


def test_a_campaign_has_jobs_of_all_kinds_and_faults_in_their_time(tmp_path):
    rng = random.Random(7)  # noqa: S311 - not secret
    jobs = [one for wave in design_jobs(300, tmp_path, rng, memory_held=True) for one in wave]
    assert len({one.job.key for one in jobs}) == 300
    kinds = {"well", "fails", "hungry", "follows", "cannot follow", CANCELLED, LONG}
    assert kinds == {one.kind for one in jobs}
    assert not any(one.kind == "hungry" for wave in design_jobs(300, tmp_path, rng, memory_held=False) for one in wave)
    struck = strike_times(FULL, 100.0, rng)
    assert 2 * len(struck) >= LEAST_FAULTS
    assert set(Fault) == {fault for _, fault in struck}
    assert all(SSH_PART[0] * 100 <= at_s <= SSH_PART[1] * 100 for at_s, fault in struck if fault is Fault.SSH)


def test_a_job_writes_a_word_of_its_start_and_of_its_end(tmp_path):
    variables = {"LEADLINE_KEY": "k", "SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n1"}
    fails = replace(designed("fails").job.spec)
    for index in ("", "1"):
        command = [*fails.command[:4], str(tmp_path), "job", "0.01", "0", "1000", "1"]
        done = run_process(command, env={**variables, "LEADLINE_INDEX": index})
        assert (FAILED_CODE if index else 0) == done.returncode, done.stderr
    found = {one.job: one for one in read_ledger(tmp_path)}
    assert {name: one.code for name, one in found.items()} == {"job": 0, "job-1": FAILED_CODE}
    assert found["job"].node == "n1"
    assert found["job"].began_s < found["job"].ended_s


def test_stand_ins_do_as_ordered_once_and_else_what_they_stand_for(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    for name in ("sbatch", "sacct", "squeue"):
        (real / name).write_text(f'#!/bin/sh\necho "{name} $@"\ncat >> {tmp_path}/taken\n')
        (real / name).chmod(0o755)
    path = first_on_path(real, os.environ["PATH"])
    shims = make_shims(tmp_path / "shims", path)

    def call(*words):
        return run_process(words, env={"PATH": first_on_path(shims.folder, path)}, stdin="script\n", timeout_s=1.0)

    assert call("sbatch", "-x", "a b").stdout == "sbatch -x a b\n"
    shims.order_sbatch("dies after")
    shims.order_sbatch("hangs before")
    assert (call("sbatch").returncode, call("sbatch").stdout) == (-9, "")
    assert call("sbatch").stdout == "sbatch \n"
    assert (tmp_path / "taken").read_text() == "script\n" * 3
    shims.order_sacct("disabled")
    assert "accounting storage is disabled" in call("sacct").stderr
    shims.order_sacct("hangs")
    assert call("sacct").timed_out
    shims.withdraw()
    assert call("sacct", "-n").stdout == "sacct -n\n"
    assert shims.used() == {"sbatch": 2, "sacct": 2}
    with pytest.raises(InvalidInput, match="there is no sbatch"):
        make_shims(tmp_path / "none", str(tmp_path))


def test_a_full_disk_takes_nothing_more_until_it_is_freed(tmp_path):
    with journal_disk(tmp_path / "disk") as disk:
        if not isinstance(disk, OwnFileSystem):
            pytest.skip("nothing can be mounted here")
        file = tmp_path / "disk" / "file"
        disk.fill(0)
        with pytest.raises(OSError, match="No space left"):
            file.write_bytes(bytes(1 << 17))
        disk.free(0)
        file.write_bytes(bytes(1 << 17))


def test_where_nothing_can_be_mounted_the_size_of_files_is_limited(tmp_path):
    writes = "import sys; sys.stdin.read(1); open(sys.argv[1], 'wb').write(bytes(1 << 17)); print('written')"
    for filled in (True, False):
        words = [sys.executable, "-c", writes, str(tmp_path / "file")]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as one:
            disk = FileSizes()
            disk.fill(one.pid)
            if not filled:
                disk.free(one.pid)
            said, failed = one.communicate(b"x")
        assert filled is (b"File too large" in failed)
        assert filled is not (said == b"written\n")
    disk.free(one.pid)  # one that ended has no limits


class Stopped:
    """A plane process that never runs."""

    def kill(self):
        return False

    def start(self):
        pass


class Queue:
    """A cluster that only lists jobs."""

    def __init__(self, *ids):
        self.ids = ids

    def run(self, *_, **__):
        return CompletedProcess(0, "".join(f"{number}\n" for number in self.ids), "")


def test_a_moved_journal_is_put_back_once_its_living_jobs_were_looked_for(tmp_path):
    path, job = tmp_path / "journal", designed("well").job
    attempts = [
        Attempt(f"a{number}", job.key, number, PLACE, job.spec.resources, scheduler_id=f"{number}")
        for number in (1, 2, 3)
    ]
    with PlaneJournal(path) as journal:
        journal.add([job])
        journal.write(attempts=attempts)
    swap = JournalSwap(path, Stopped(), Queue("1", "2", "9"))
    swap.move_away()
    with pytest.raises(LeadlineError, match="made no new one"):
        swap.put_back()
    with PlaneJournal(path) as journal:
        with pytest.raises(LeadlineError, match="has not looked for its jobs"):
            swap.put_back()
        found = replace(job, key="a1", attempts=(replace(attempts[0], job="a1"),))
        journal.restore([found], [NewEvent(EventKind.POLL, details={"system": PLACE.system, FOUND_AGAIN: 1})])
    swap.put_back()
    assert (swap.living, swap.unfound) == (2, [f"{job.key} a2 as 2"])
    with PlaneJournal(path) as journal:
        assert [kept.key for kept in journal.open_jobs()] == [job.key]
    assert {file.name for file in tmp_path.iterdir()} == {"journal"}


@pytest.mark.slow
@pytest.mark.skipif("LEADLINE_FAULTS" not in os.environ, reason="LEADLINE_FAULTS asks for no campaign of a minute")
@pytest.mark.skipif(bool(slurm_cluster.why_no_slurm()), reason=slurm_cluster.why_no_slurm())
@pytest.mark.skipif(bool(ssh_server.why_no_sshd()), reason=ssh_server.why_no_sshd())
def test_nothing_is_lost_or_run_twice_under_a_few_faults(tmp_path):
    rows = fault_rows(tmp_path / "campaign", quick=True, seeds=(3,))
    assert [(row.name, row.how) for row in rows if row.met is False] == []
    assert rows[0].value >= len(Fault) - 3  # one kind is left out, and two may find no job to strike


OF_DESIGN = [("well", None, S.COMPLETED), ("fails", C.UNKNOWN, S.FAILED), ("hungry", C.HOST_MEMORY, S.OUT_OF_MEMORY)]


@pytest.mark.parametrize(("kind", "cause", "state"), OF_DESIGN)
def test_a_cause_by_design_is_right_and_any_other_is_wrong(kind, cause, state):
    assert causes(kind, state, cause) == 0
    assert causes(kind, S.FAILED, C.WALLTIME) == 1
    assert causes(kind, S.NODE_FAIL, C.NODE) == 1
    assert causes(kind, S.NODE_FAIL, C.NODE, outages=[Outage(990.0, "n1")]) == 0
    assert causes(kind, S.NODE_FAIL, C.NODE, outages=[Outage(990.0, "n2")]) == 1
    assert causes(kind, S.NODE_FAIL, C.NODE, outages=[Outage(500.0), Outage(1001.0)]) == 1
    assert causes(kind, S.NODE_FAIL, C.NODE, outages=[Outage(900.0)], started_s=930.0) == 0
    assert causes(kind, S.NODE_FAIL, C.NODE, outages=[Outage(900.0)], started_s=970.0) == 1


def test_a_started_job_counts_as_forgotten_minutes_after_the_outage():
    forgotten = "the scheduler says NODE_FAIL (its scheduler forgot it)"
    assert causes("well", S.CANCELLED, C.TRANSIENT, evidence=forgotten, outages=[Outage(600.0)]) == 0
    assert causes("well", S.CANCELLED, C.TRANSIENT, evidence=forgotten, outages=[Outage(500.0)]) == 1
    assert causes("well", S.CANCELLED, C.TRANSIENT, evidence="SIGBUS", outages=[Outage(600.0)]) == 1


def test_staff_have_not_cancelled_a_job_that_the_controller_does_not_know(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(fault_staff, "AS_OPERATOR", ())  # another user cannot read the folder of tests
    job = designed("cancelled by staff").job
    attempt = Attempt("a", job.key, 1, PLACE, job.spec.resources, noted_at=iso_utc(0.0), scheduler_id="99999")
    with PlaneJournal(tmp_path / "journal") as journal:
        journal.add([job])
        journal.write(attempts=[replace(attempt, state=S.RUNNING)])
    staff = SiteStaff(slurm, tmp_path / "journal", random.Random(1), {job.key: "cancelled by staff"})  # noqa: S311 - not secret
    assert staff.cancel() == ""
    assert not staff.causes
    assert not staff.cancelled


def test_what_the_staff_did_must_be_found():
    assert causes("well", S.CANCELLED, C.REQUEUE, staff=C.REQUEUE) == 0
    assert causes("well", S.CANCELLED, C.USER, staff=C.ADMINISTRATOR) == 1
    assert causes("well", S.CANCELLED, C.UNKNOWN, staff=C.ADMINISTRATOR) == 1
    assert causes("well", S.CANCELLED, C.UNKNOWN, staff=C.ADMINISTRATOR, silences=[Outage(990.0)]) == 0
    assert causes("well", S.CANCELLED, C.UNKNOWN, staff=C.REQUEUE, silences=[Outage(990.0)]) == 1
    assert causes("well", S.COMPLETED, None, staff=C.REQUEUE) == 0  # it ended before


def test_nothing_is_said_of_a_campaign_of_no_jobs():
    assert FaultTally((), (), ()) == tally_faults([], {}, [], [])
