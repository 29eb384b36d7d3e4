"""Slurm as the plane's scheduler, on a real cluster: here, and over a real sshd."""

import itertools
import re
import signal
import stat
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import DependencyKind
from leadline.core.processes import CompletedProcess
from leadline.core.units import MIB
from leadline.execution.schedulers.attempt_files import read_output
from leadline.execution.schedulers.port import RequestRefused, Submission, SubmissionUncertain
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport
from leadline.execution.transport.ssh import SshTransport
from leadline.testing.scheduler_contract import SchedulerContract
from tests.support.slurm_cluster import slurm_cluster, why_no_slurm
from tests.support.slurm_plan import ClusterPlan
from tests.support.ssh_server import HOST, ssh_server
from tests.support.ssh_server import why_no_sshd as ssh_missing

ASKED = ResourceSpec(cores_per_task=1, memory_bytes_per_node=200 * MIB, walltime_s=240.0)
KEYS = (f"key{number}-{time.time_ns() % 10**9}" for number in itertools.count())


def submission(*command, indices=(), resources=ASKED, name="nap it's", **options):
    key = next(KEYS)
    partition = options.pop("partition", "short")
    spec = JobSpec(
        name,
        tuple(map(str, command)) or ("true",),
        resources,
        partition=partition,
        environment=options.pop("environment", {}),
        workdir=options.pop("workdir", None),
    )
    return Submission(key, spec, indices, **options)


def python(code, *arguments, **options):
    return submission(sys.executable, "-c", code, *arguments, **options)


class Lossy:
    """A transport whose answer to sbatch is lost, or that hangs before or after sbatch ran."""

    def __init__(self, transport, mode):
        self.transport, self.mode, self.where = transport, mode, transport.where

    def __getattr__(self, name):
        return getattr(self.transport, name)

    def run(self, argv, **options):
        if argv[0] != "sbatch":
            return self.transport.run(argv, **options)
        if self.mode == "after":
            self.transport.run(argv, **options)
        return CompletedProcess(-15, "", "", timed_out=True)


class Mute(Lossy):
    """A transport on which the accounting never answers."""

    def run(self, argv, **options):
        return (
            CompletedProcess(-15, "", "", timed_out=True) if argv[0] == "sacct" else self.transport.run(argv, **options)
        )


@pytest.fixture(scope="session")
def sshd(cluster, tmp_path_factory):
    if reason := ssh_missing():
        pytest.skip(reason)
    home = str(tmp_path_factory.mktemp("home"))  # without what this user's shell does at each start
    variables = {**cluster.environment, "HOME": home, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    with ssh_server(tmp_path_factory.mktemp("sshd"), variables) as running:
        yield running


@pytest.fixture(params=["here", "ssh"])
def transport(request, slurm):
    if request.param == "here":
        yield LocalTransport()
        return
    server = request.getfixturevalue("sshd")
    with tempfile.TemporaryDirectory(prefix="s") as sockets:
        opened = SshTransport(HOST, config=server.config, sockets=Path(sockets))
        yield opened
        opened.close()


@pytest.mark.usefixtures("slurm")
class TestContract(SchedulerContract):
    """Slurm keeps the contract of a scheduler, here and over SSH."""

    def again(self, scheduler):
        return SlurmScheduler(scheduler.name, scheduler.folder, scheduler.transport, python=scheduler.python)


@pytest.fixture
def scheduler(transport, tmp_path):
    return SlurmScheduler("test", PurePosixPath(tmp_path / "jobs 50%"), transport, python=sys.executable)


def until(scheduler, job, *states):
    """Follow a job as the plane does: the queue, then the accounting, until one of the states."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status = scheduler.query([job]).get(job) or scheduler.account([job]).get(job)
        if status is not None and (status.state in states):
            return status
        time.sleep(0.2)
    raise AssertionError(f"job {job} is {status}")


def ended(scheduler, job):
    """Return what the accounting says once it says that the job ended."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        status = scheduler.account([job]).get(job)
        if status is not None and status.state.final:
            return status
        time.sleep(0.2)
    raise AssertionError(f"the accounting does not know that {job} ended")


def test_a_job_runs_measured_and_is_reported_from_submission_to_end(scheduler, cluster, tmp_path):
    sent = python(
        "import os, sys; print(os.environ['A'], sys.argv[1:])",
        "$x 'y'",
        "a\nb",
        environment={"A": "it's"},
        workdir=str(tmp_path),
    )
    before = time.time()
    job = scheduler.submit(sent)
    status = ended(scheduler, job)
    assert (status.state, status.exit_code, status.signal) == (JobState.COMPLETED, 0, None)
    assert before - 2 <= status.submitted_s <= status.started_s <= status.ended_s <= time.time() + 2
    assert (status.nodes, status.node in cluster.nodes) == (1, True)
    outcome = scheduler.reports(sent.keys)[sent.key]
    assert JobState.COMPLETED is outcome.state
    assert outcome.measured["elapsed_s"].value > 0
    assert scheduler.reports(sent.keys, since_s=time.time() + 5) == {}
    assert {sent.key: "it's [\"$x 'y'\", 'a\\nb']\n"} == scheduler.log_tails([sent.key, "never-sent"])
    assert {sent.key: job} == scheduler.find([sent.key, "never-sent"])


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("earlier", [False, True])
def test_only_the_owner_reads_what_jobs_write(scheduler, earlier):
    runs = Path(scheduler.folder) / "runs"
    if earlier:
        runs.mkdir(parents=True)  # as others may read it, made by hand
    sent = submission("true")
    ended(scheduler, scheduler.submit(sent))
    assert scheduler.log_tails(sent.keys)
    assert stat.S_IMODE(runs.stat().st_mode) == 0o700
    assert earlier or stat.S_IMODE(runs.parent.stat().st_mode) == 0o700


def test_an_array_is_one_submission_of_elements_with_keys_of_their_own(scheduler):
    code = "import os, sys; print(os.environ['LEADLINE_KEY']); sys.exit(int(os.environ['LEADLINE_INDEX']) == 4)"
    sent = python(code, indices=(1, 4, 5), most=2)
    job = scheduler.submit(sent)
    ids = [f"{job}_{index}" for index in sent.indices]
    states = [ended(scheduler, one).state for one in ids]
    assert states == [JobState.COMPLETED, JobState.FAILED, JobState.COMPLETED]
    assert scheduler.account(ids)[ids[1]].exit_code == 1
    assert set(sent.keys) == set(scheduler.reports(sent.keys))
    assert scheduler.reports(sent.keys)[sent.keys[1]].exit_code == 1
    assert {key: f"{key}\n" for key in sent.keys} == scheduler.log_tails(sent.keys)
    assert {key: f"{key[-3:]}\n" for key in sent.keys} == scheduler.log_tails(sent.keys, most_bytes=4)
    assert {sent.key: job} == scheduler.find([sent.key])


def test_a_quickly_completed_job_needs_no_accounting_but_a_failed_one_does(transport, scheduler):
    jobs = {one: scheduler.submit(submission(one, indices=(2, 3), measured=False)) for one in ("true", "false")}
    ends = {one: [f"{job}_2", f"{job}_3"] for one, job in jobs.items()}
    for one in ends["false"]:
        assert JobState.FAILED is ended(scheduler, one).state
    mute = SlurmScheduler("mute", scheduler.folder, Mute(transport, ""), python=sys.executable)
    found = mute.account(ends["true"])
    assert {(one, JobState.COMPLETED, 0) for one in ends["true"]} == {
        (one, status.state, status.exit_code) for one, status in found.items()
    }
    with pytest.raises(SchedulerUnreachable):
        mute.account(ends["false"])


def test_an_attempt_that_was_submitted_twice_runs_once(scheduler, tmp_path):
    sent = submission("sh", "-c", f"echo ran >> {tmp_path}/ran")
    first, second = scheduler.submit(sent), scheduler.submit(sent)
    codes = [ended(scheduler, one).exit_code for one in (first, second)]
    assert set(codes) <= {0, 125}, "what is started once more ends as the first did, if that has ended"
    assert 0 in codes
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert {sent.key: first} == scheduler.find([sent.key])


def test_the_queue_reports_waiting_and_running_jobs_with_reasons(scheduler, cluster):
    runs = scheduler.submit(submission("sleep", 60))
    waits = scheduler.submit(submission("sleep", 60, after=(runs,), after_kind=DependencyKind.ANY))
    array = scheduler.submit(submission("sleep", 60, indices=(0, 1, 7), after=(runs,)))
    running = until(scheduler, runs, JobState.RUNNING)
    assert running.started_s
    assert running.node
    found = scheduler.query([runs, waits, f"{array}_7", "999999"])
    assert {runs, waits, f"{array}_7"} == set(found)
    assert (found[waits].state, found[waits].reason, found[waits].started_s) == (JobState.PENDING, "Dependency", None)
    scheduler.cancel([runs, f"{array}_1", "999999"], waiting=True)
    assert JobState.CANCELLED is ended(scheduler, f"{array}_1").state
    assert JobState.RUNNING is scheduler.query([runs])[runs].state
    scheduler.cancel([runs, waits, array, "999999"])
    assert JobState.CANCELLED is ended(scheduler, runs).state
    assert JobState.CANCELLED is ended(scheduler, waits).state
    assert JobState.CANCELLED is ended(scheduler, f"{array}_7").state
    scheduler.cancel([runs])  # it ended already
    # The accounting of Slurm 24.11 may be ahead of its queue.
    cluster.wait(lambda: scheduler.query([runs, waits]) == {}, "the queue to drop the ended jobs")


def test_slurm_cancels_a_job_that_can_never_start(scheduler):
    fails = scheduler.submit(submission("false"))
    follows = scheduler.submit(submission("true", after=(fails,)))
    assert (ended(scheduler, fails).state, ended(scheduler, fails).exit_code) == (JobState.FAILED, 1)
    assert JobState.CANCELLED is ended(scheduler, follows).state
    remembered = scheduler.remembered([fails, follows, scheduler.submit(submission("sleep", 9))])
    assert {fails: 1, follows: None} == {job: status.exit_code for job, status in remembered.items()}


def test_the_step_that_ran_out_of_memory_shows_it(scheduler, cluster):
    if not cluster.layout.cgroups:
        pytest.skip("there are no control groups that this user may write")
    eats = "x = bytearray(b'x') * (400 << 20); import time; time.sleep(5)"
    direct = scheduler.submit(python(eats, measured=False))
    hidden = scheduler.submit(submission("srun", sys.executable, "-c", eats, measured=False))
    lives = scheduler.submit(submission("bash", "-c", f'srun {sys.executable} -c "{eats}" || true', measured=False))
    assert JobState.OUT_OF_MEMORY is ended(scheduler, direct).state
    by_step = ended(scheduler, hidden)
    assert JobState.OUT_OF_MEMORY is by_step.state
    assert any("ran out of memory" in one for one in by_step.evidence)
    survived = ended(scheduler, lives)
    assert any(f"step {lives}.0 ran out of memory" in one for one in survived.evidence)


def test_the_output_is_read_in_parts_and_linked_where_the_job_runs(scheduler, tmp_path):
    sent = python("import sys; sys.stdout.buffer.write(b'one\\n\\xfftwo\\n')", workdir=str(tmp_path), link="3f2a91")
    job = scheduler.submit(sent)
    ended(scheduler, job)
    path = scheduler.folder / "runs" / f"{sent.key}.log"
    whole = read_output(scheduler.transport, path, 0)
    assert (whole.data, whole.next_offset) == (b"one\n\xfftwo\n", 9)
    assert read_output(scheduler.transport, path, 4).data == b"\xfftwo\n"
    last = read_output(scheduler.transport, path, 0, lines=1)
    assert (last.data, last.next_offset) == (b"\xfftwo\n", 9)
    assert read_output(scheduler.transport, path, 9).data == b""
    assert read_output(scheduler.transport, path.with_name("it's $(none)"), 0).next_offset is None
    assert (tmp_path / f"slurm-{job}.out").read_bytes() == whole.data


def test_a_limit_is_shortened_and_the_warning_before_it_reaches_the_command(scheduler, tmp_path):
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (open(sys.argv[1], 'w').write('saved'), sys.exit(0)))\n"
        "time.sleep(200)"
    )
    sent = python(
        code,
        tmp_path / "checkpoint",
        checkpoint_signal="SIGUSR1",
        checkpoint_s=55.0,
        resources=replace(ASKED, walltime_s=60.0),
    )
    job = scheduler.submit(sent)
    long = scheduler.submit(submission("sleep", 100))
    until(scheduler, long, JobState.RUNNING)
    scheduler.change_walltime(long, 61.0)
    assert scheduler.query([long])[long].walltime_s == 120.0
    with pytest.raises(RequestRefused, match=r"refuses the limit of job 999999 .*Invalid job id"):
        scheduler.change_walltime("999999", 60.0)
    scheduler.cancel([long])
    assert JobState.COMPLETED is ended(scheduler, job).state
    assert (tmp_path / "checkpoint").read_text() == "saved"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"partition": "nowhere"}, "nvalid partition"),
        ({"resources": replace(ASKED, walltime_s=1e6)}, "time limit"),
        ({"resources": replace(ASKED, memory_bytes_per_node=2**50)}, "node configuration is not available"),
    ],
)
def test_a_refusal_of_slurm_is_quoted_and_leaves_nothing_behind(changes, why, scheduler):
    sent = submission("true", **changes)
    with pytest.raises(RequestRefused, match=f"refused the job .*{why}"):
        scheduler.submit(sent)
    time.sleep(1.5)  # by then the accounting has what Slurm keeps of some that it refused
    assert scheduler.find([sent.key]) == {}
    assert scheduler.forecast_start_s(sent) is None


def test_a_start_is_forecast_without_a_job(scheduler):
    sent = submission("true")
    assert abs(scheduler.forecast_start_s(sent) - time.time()) < 3600
    assert scheduler.find([sent.key]) == {}


@pytest.mark.parametrize(("mode", "there"), [("before", False), ("after", True)])
def test_a_submission_whose_answer_is_lost_is_looked_up(mode, there, scheduler):
    sent = submission("true")
    scheduler._commands = replace(scheduler._commands, transport=Lossy(scheduler.transport, mode))
    with pytest.raises(SubmissionUncertain, match="look it up by its key"):
        scheduler.submit(sent)
    deadline = time.monotonic() + 10
    while not (found := scheduler.find([sent.key])) and time.monotonic() < deadline and there:
        time.sleep(0.2)
    assert there == (sent.key in found)


def test_odd_names_and_comments_of_other_jobs_are_not_taken_for_ours(scheduler, cluster):
    wanted = next(KEYS)
    odd = [f"x\n77|leadline:{wanted}|a", f"a\"b'|c-{wanted}x", "x" * 300, f"y\n99-{wanted}\nz"]
    for name in odd:
        done = cluster.run(["sbatch", "-o", "/dev/null", f"--job-name={name}", f"--comment={name}", "--wrap", "true"])
        assert done.returncode == 0, done.stderr
    mine = scheduler.submit(submission("true"))
    assert scheduler.find([wanted]) == {}
    assert mine
    # A job of the same name whose comment the site does not keep is found by its name.
    cluster.run(["sbatch", "-o", "/dev/null", f"--job-name=some-{wanted}", "--wrap", "true"])
    assert wanted in scheduler.find([wanted])


@pytest.mark.parametrize("key", ["", "a b", "a;b", "x" * 49, "-a", "$(x)", "a\nb"])
def test_a_key_that_could_not_be_found_again_is_refused(key, scheduler):
    with pytest.raises(InvalidInput, match="cannot be a key"):
        scheduler.submit(replace(submission("true"), key=key))


def test_a_command_of_several_tasks_is_launched_and_its_first_task_reports(scheduler):
    sent = submission("true", resources=replace(ASKED, tasks_per_node=2, memory_bytes_per_node=400 * MIB))
    job = scheduler.submit(sent)
    assert JobState.COMPLETED is ended(scheduler, job).state
    assert JobState.COMPLETED is scheduler.reports(sent.keys)[sent.key].state


def test_where_leadline_is_not_a_job_runs_all_the_same(transport, tmp_path, slurm):
    scheduler = SlurmScheduler("test", PurePosixPath(tmp_path / "jobs"), transport, python="/no/such/python")
    sent = submission("echo", "done")
    assert JobState.COMPLETED is ended(scheduler, scheduler.submit(sent)).state
    left = scheduler.reports(sent.keys)[sent.key]
    assert (left.state, left.exit_code, left.measured) == (JobState.COMPLETED, 0, {})
    said = scheduler.log_tails(sent.keys)[sent.key]
    assert said == "leadline is not installed here: the job runs unmeasured\ndone\n"


@pytest.mark.parametrize("folder", ["relative", "/a$HOME", "/a\\b", "/a\nb"])
def test_a_folder_that_slurm_would_read_as_a_pattern_is_refused(folder):
    with pytest.raises(InvalidInput, match="cannot hold jobs"):
        SlurmScheduler("test", PurePosixPath(folder), LocalTransport())


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm())
def test_without_accounting_the_controller_counts_and_silence_proves_nothing(tmp_path, monkeypatch):
    (tmp_path / "slurm").mkdir()
    plan = ClusterPlan(name="bare", nodes=1, accounting=False, cgroups=False)
    with slurm_cluster(tmp_path / "slurm", plan) as bare:
        for name, value in bare.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
        scheduler = SlurmScheduler(
            "bare", PurePosixPath(tmp_path / "jobs"), LocalTransport(), python=sys.executable, timeout_s=6
        )
        sent = submission("false")
        job = scheduler.submit(sent)
        status = ended(scheduler, job)
        assert (status.state, status.exit_code) == (JobState.FAILED, 1)
        assert status.started_s <= status.ended_s
        array = scheduler.submit(submission("true", indices=(2, 3)))
        assert JobState.COMPLETED is ended(scheduler, f"{array}_3").state
        assert {sent.key: job} == scheduler.find([sent.key])
        lives = scheduler.submit(submission("sleep", 60))
        until(scheduler, lives, JobState.RUNNING)
        bare.save()  # what a controller took in its last seconds dies with it
        bare.stop("slurmctld", sign=signal.SIGKILL)
        lost = submission("true")
        for ask in (
            lambda: scheduler.query([lives]),
            lambda: scheduler.account([lives]),
            lambda: scheduler.find([lost.key]),
            lambda: scheduler.cancel([lives]),
            lambda: scheduler.submit(lost),
        ):
            with pytest.raises(SchedulerUnreachable):
                ask()
        bare.start("slurmctld")
        assert JobState.RUNNING is until(scheduler, lives, JobState.RUNNING).state
        assert scheduler.find([lost.key]) == {}
        scheduler.cancel([lives])


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm())
def test_preemption_and_node_failure_are_distinguished_and_not_requeued(tmp_path, monkeypatch):
    (tmp_path / "slurm").mkdir()
    plan = ClusterPlan(name="faulty", nodes=1, cores=2, preemptible="REQUEUE", silent_s=10)
    with slurm_cluster(tmp_path / "slurm", plan) as faulty:
        for name, value in faulty.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
        scheduler = SlurmScheduler("faulty", PurePosixPath(tmp_path / "jobs"), LocalTransport(), python=sys.executable)
        both = replace(ASKED, cores_per_task=2)
        spare = scheduler.submit(submission("sleep", 300, partition="spare", resources=both))
        until(scheduler, spare, JobState.RUNNING)
        other = scheduler.submit(submission("sleep", 300, resources=both))
        assert JobState.PREEMPTED is ended(scheduler, spare).state
        until(scheduler, other, JobState.RUNNING)
        faulty.stop("slurmdbd")
        with pytest.raises(SchedulerUnreachable, match="cannot be reached"):
            scheduler.account([other])
        assert JobState.RUNNING is scheduler.query([other])[other].state
        faulty.start("slurmdbd")
        faulty.crash(faulty.nodes[0])
        assert JobState.NODE_FAIL is ended(scheduler, other).state


def test_a_limited_query_range_is_respected():
    class Bounded(LocalTransport):
        def run(self, argv, **_):
            if argv[0] != "sacct":
                return CompletedProcess(0, "me\n" if argv[0] == "sh" else "", "")
            if argv[argv.index("-S") + 1] != "now-7days":
                return CompletedProcess(1, "", "sacct: error: slurmdbd: Too wide of a date range in query")
            mark = argv[argv.index("-u") + 2].partition("=")[2]
            return CompletedProcess(0, mark.join(["c", "12", "COMPLETED", "n1", "", "nap-key", ""]) + "\n", "")

    assert SlurmScheduler("test", PurePosixPath("/x"), Bounded()).find(["key"]) == {"key": "12"}


def test_ten_thousand_commands_are_never_on_one_line():
    asked = []

    class Records(LocalTransport):
        def run(self, argv, **_):
            asked.append(list(argv))
            return CompletedProcess(0, "me\n", "")

    scheduler = SlurmScheduler("test", PurePosixPath("/x"), Records())
    scheduler.account([f"{number}_1" for number in range(10_000)])
    scheduler.cancel([str(number) for number in range(10_000)])
    # what no element is known of, its array may tell of
    assert sum(len(words[words.index("-j") + 1].split(",")) for words in asked if words[0] == "sacct") == 20_000
    assert sum(len(words) - 1 for words in asked if words[0] == "scancel") == 10_000
    assert max(len(word) for words in asked for word in words) < 10_000
    assert all(re.fullmatch(r"\d+", word) for words in asked if words[0] == "scancel" for word in words[1:])


RUNNING = {"State": "RUNNING", "Start": "2026-11-27T09:07:18", "NodeList": "n1"}


@pytest.mark.parametrize(
    ("listed", "row", "killed", "forgotten"),
    [
        ("12", {"State": "PENDING"}, (), ["key"]), ("12_1", {"State": "PENDING"}, (), ["key"]),
        ("13", {"State": "PENDING"}, (), []), ("12", RUNNING, (), []), ("12", RUNNING, ["key"], ["key"]),
        ("12", {**RUNNING, "State": "FAILED"}, ["key"], []), ("12", {}, ["key"], []), ("12", {}, (), ["key"]),
    ],
)  # fmt: skip
def test_a_job_that_only_the_accounting_lists_is_forgotten_unless_it_ended_or_may_still_run(
    listed, row, killed, forgotten
):
    """A killed controller lost it, and the accounting has its name, and perhaps its start, but never its end."""

    class Remains(LocalTransport):
        def run(self, argv, **_):
            if argv[0] == "scontrol":
                return CompletedProcess(1, "", "slurm_load_jobs error: Invalid job id specified")
            if argv[0] != "sacct":
                return CompletedProcess(0, "me\n" if argv[0] == "sh" else "", "")
            if not row:
                return CompletedProcess(1, "", "Slurm accounting storage is disabled")
            if "-j" in argv:
                known = {"JobIDRaw": "12", "JobID": "12", "JobName": "nap-key", **row}
                return CompletedProcess(0, "|".join(known.get(name, "") for name in argv[-1].split(",")) + "\n", "")
            mark = argv[argv.index("-u") + 2].partition("=")[2]
            return CompletedProcess(
                0, mark.join(["c", listed, "PENDING", "None assigned", "", "nap-key", ""]) + "\n", ""
            )

    scheduler = SlurmScheduler("test", PurePosixPath("/x"), Remains())
    assert scheduler.find(["key"]) == ({"key": listed.partition("_")[0]} if row else {})
    assert list(scheduler.forgotten({"key": "key"}, {"key": "12"}, killed)) == forgotten


def test_a_thousand_missing_jobs_are_looked_up_a_part_at_a_time():
    class Forgets(LocalTransport):
        def run(self, argv, *, stdin=None, **_):
            if argv[0] == "scontrol":
                return CompletedProcess(1, "", "slurm_load_jobs error: Invalid job id specified")
            return CompletedProcess(0, "me\n" if stdin is None and argv[0] == "sh" else "", "")

    keys = {f"k{number}": f"k{number}" for number in range(1000)}
    ids = {f"k{number}": str(1000 + number) for number in range(1000)}
    forgotten = SlurmScheduler("test", PurePosixPath("/x"), Forgets()).forgotten(keys, ids, ())
    assert sorted(forgotten) == sorted(f"k{number}" for number in range(200))
