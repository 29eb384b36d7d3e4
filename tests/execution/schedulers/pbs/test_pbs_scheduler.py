"""PBS's commands over a real Slurm (Debian's slurm-wlm-torque), and answers of a real PBS played back."""

import json
import os
import shutil
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.processes import CompletedProcess
from leadline.core.units import MIB
from leadline.execution.schedulers.pbs.scheduler import PbsScheduler
from leadline.execution.schedulers.pbs.script import PbsFlavour
from leadline.execution.schedulers.port import ListingScheduler, RequestRefused, Submission, SubmissionUncertain
from leadline.execution.transport.port import ConnectionLost, LocalTransport

SAID = Path(__file__).parent / "outputs"


def job(key, script, **resources):
    asked = ResourceSpec(cores_per_task=1, **{"walltime_s": 300.0, "memory_bytes_per_node": 200 * MIB, **resources})
    return Submission(key, JobSpec(f"job {key}", ("sh", "-c", script), asked, partition="short"))


@pytest.fixture
def pbs(slurm, tmp_path, monkeypatch):
    if shutil.which("qsub") is None:
        pytest.skip("there is no qsub here")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.chdir(tmp_path)
    folder = PurePosixPath(tmp_path)
    return PbsScheduler("torque", folder, LocalTransport(), flavour=PbsFlavour.TORQUE, python=sys.executable)


def until(pbs, condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    return found


def running(pbs, number):
    status = pbs.query([number]).get(number)
    return status is not None and status.state is JobState.RUNNING


def reported(pbs, *keys):
    found = pbs.reports(keys)
    return found if len(found) == len(keys) and all(one.state.final for one in found.values()) else None


@pytest.mark.usefixtures("open_umask")
def test_jobs_are_submitted_found_again_and_followed_to_their_reports(pbs, tmp_path):
    good = pbs.submit(job("k1", f"echo made > {tmp_path}/made"))
    bad = pbs.submit(job("k2", "echo wrong; exit 3"))
    assert {"k1": good, "k2": bad} == pbs.find(["k1", "k2", "k3"])
    assert pbs.query([good, "999999"])[good].walltime_s == 300.0
    outcomes = until(pbs, lambda: reported(pbs, "k1", "k2"))
    assert (
        outcomes["k1"].state,
        outcomes["k2"].state,
        outcomes["k2"].exit_code,
    ) == (JobState.COMPLETED, JobState.FAILED, 3)
    assert pbs.reports(["k1", "k3"], since_s=time.time() + 5) == {}
    assert pbs.log_tails(["k1", "k2", "k3"]) == {"k1": "", "k2": "wrong\n"}
    until(pbs, lambda: pbs.query([good, bad]) == {})
    told = pbs.account([good, bad, "999999"])
    assert (told[good].state, told[bad].state, told[bad].exit_code) == (JobState.COMPLETED, JobState.FAILED, 3)
    assert (tmp_path / "made").read_text() == "made\n"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "runs", tmp_path / "runs" / "k1.log")}
    assert modes == {"runs": 0o700, "k1.log": 0o600}


def test_a_job_is_cancelled_and_its_limit_is_not_changed_where_qalter_cannot(pbs):
    number = pbs.submit(job("k4", "sleep 120"))
    until(pbs, lambda: running(pbs, number))
    with pytest.raises(RequestRefused, match="does not change the limit"):
        pbs.change_walltime(number, 600)
    pbs.cancel([number])
    until(pbs, lambda: pbs.query([number]) == {})
    pbs.cancel([number])
    assert pbs.forecast_start_s(job("k5", "true")) is None


def test_a_job_waits_for_those_before_it(pbs, tmp_path):
    first = pbs.submit(job("k6", f"sleep 2; echo first >> {tmp_path}/order"))
    then = pbs.submit(replace(job("k7", f"echo then >> {tmp_path}/order"), after=(first,)))
    assert JobState.PENDING is pbs.query([then])[then].state
    until(pbs, lambda: reported(pbs, "k6", "k7"))
    assert (tmp_path / "order").read_text() == "first\nthen\n"


def test_an_attempt_that_is_submitted_twice_runs_once(pbs, tmp_path):
    pbs.submit(job("k9", f"echo ran >> {tmp_path}/ran"))
    second = pbs.submit(job("k9", f"echo ran >> {tmp_path}/ran"))
    until(pbs, lambda: reported(pbs, "k9") and pbs.query([second]) == {})
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_a_refusal_of_pbs_is_reported(pbs):
    with pytest.raises(RequestRefused, match="PBS refused job 'job k8'"):
        pbs.submit(replace(job("k8", "true"), spec=replace(job("k8", "true").spec, partition="nowhere")))
    assert pbs.find(["k8"]) == {}


class Played:
    """A place whose commands give recorded answers; those asked for are kept."""

    where = "login01"

    def __init__(self, **answers):
        self.answers, self.asked, self.files = answers, [], {}

    def run(self, argv, **_):
        self.asked.append(list(argv))
        answer = self.answers[argv[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer.pop(0) if isinstance(answer, list) else answer

    def write(self, path, text, **_):
        self.files[str(path)] = text

    def read_changed(self, *_, **__):
        return {}


def over(**answers):
    played = Played(**answers)
    return PbsScheduler("centre", PurePosixPath("/scratch"), played), played


def test_pbs_professional_is_queried_as_json_with_history_and_array_elements():
    scheduler, played = over(qstat=CompletedProcess(0, (SAID / "pro-history.json").read_text(), ""))
    found = scheduler.query(["4732778.pbs01", "4732779[].pbs01_1", "4732779[].pbs01_0"])
    assert played.asked == [["qstat", "-x", "-t", "-f", "-F", "json", "4732778.pbs01", "4732779[].pbs01"]]
    assert {"4732778.pbs01", "4732779[].pbs01_0", "4732779[].pbs01_1"} == set(found)
    assert {"4732779[].pbs01_0", "4732779[].pbs01_1", "4732779[].pbs01_2"} == set(scheduler.query(["4732779[].pbs01"]))
    assert {"4732779[].pbs01_0"} == set(scheduler.account(["4732779[].pbs01"]))
    assert scheduler.find(["77aa", "4f2a90", "none"]) == {"77aa": "4732779[].pbs01", "4f2a90": "4732778.pbs01"}


def test_the_living_jobs_of_pbs_are_this_users_with_a_key_and_elements_on_their_own():
    mine, others = {"Job_Owner": "ada@login01", "queue": "short"}, {"Job_Owner": "adam@login01", "job_state": "R"}
    whole = {
        "1.pbs01": {**mine, "Job_Name": "train.0123456789ab", "job_state": "R", "Resource_List": {"nodect": 2}},
        "2[].pbs01": {**mine, "Job_Name": "sweep.ba9876543210", "job_state": "B"},
        "3.pbs01": {**mine, "Job_Name": "train.aaaaaaaaaaaa", "job_state": "F", "Exit_status": 0},
        "4.pbs01": {**mine, "Job_Name": "run.sh", "job_state": "Q"},
        "5.pbs01": {**others, "Job_Name": "train.bbbbbbbbbbbb"},
        "6.pbs01": {**mine, "Job_Name": "site_9", "job_state": "H",
                    "Output_Path": "login01:/scratch/jobs/cccccccccccc.out"},
    }  # fmt: skip
    element = {**mine, "Job_Name": "sweep.ba9876543210"}
    elements = {number: whole[number] for number in ("1.pbs01", "2[].pbs01", "6.pbs01")} | {
        "2[3].pbs01": {**element, "job_state": "R"}, "2[4].pbs01": {**element, "job_state": "Q"},
        "2[5].pbs01": {**element, "job_state": "X", "Exit_status": 0},
    }  # fmt: skip
    answers = [CompletedProcess(0, json.dumps({"Jobs": jobs}), "") for jobs in (whole, elements)]
    scheduler, _ = over(qstat=answers, id=CompletedProcess(0, "ada\n", ""))
    assert isinstance(scheduler, ListingScheduler)
    found = {job.scheduler_id: job for job in scheduler.living()}
    assert {number: (job.key, job.batch, job.index, job.state) for number, job in found.items()} == {
        "1.pbs01": ("0123456789ab", "0123456789ab", None, JobState.RUNNING),
        "2[].pbs01_3": ("ba9876543210-3", "ba9876543210", 3, JobState.RUNNING),
        "2[].pbs01_4": ("ba9876543210-4", "ba9876543210", 4, JobState.PENDING),
        "6.pbs01": ("cccccccccccc", "cccccccccccc", None, JobState.PENDING),
    }
    spec = found["1.pbs01"].spec
    assert (spec.name, spec.partition, spec.resources.nodes) == ("train", "short", 2)
    with pytest.raises(SchedulerUnreachable):
        over(qstat=answers, id=CompletedProcess(1, "", "id: cannot find name for user ID 7"))[0].living()


def test_living_jobs_are_listed(pbs):
    number = pbs.submit(job("0123456789ab", "sleep 60"))
    assert [(one.key, one.scheduler_id, one.spec.name) for one in pbs.living()] == [
        ("0123456789ab", number, "job-0123456789ab")
    ]
    pbs.cancel([number])
    until(pbs, lambda: pbs.living() == [])


def test_unreadable_json_is_replaced_by_text_output():
    text = "Job Id: 9.pbs01\n    job_state = F\n    Exit_status = 0\n"
    scheduler, played = over(
        qstat=[CompletedProcess(0, '{"Jobs": {"9.pbs01": {"A": "say "hi""}}}', ""), CompletedProcess(0, text, "")]
    )
    assert JobState.COMPLETED is scheduler.query(["9.pbs01"])["9.pbs01"].state
    assert played.asked[1] == ["qstat", "-x", "-f", "9.pbs01"]


def test_a_job_unknown_to_qstat_is_absent_from_the_answer():
    said = "qstat: Unknown Job Id 8.pbs01\n"
    scheduler, _ = over(qstat=CompletedProcess(153, '{"Jobs": {"9.pbs01": {"job_state": "R"}}}', said))
    assert list(scheduler.query(["8.pbs01", "9.pbs01"])) == ["9.pbs01"]


@pytest.mark.parametrize(
    "answer",
    [
        CompletedProcess(111, "", "Connection refused\nqstat: cannot connect to server pbs01 (errno=111)\n"),
        CompletedProcess(127, "", "qstat: command not found"),
        CompletedProcess(-9, "", "", timed_out=True),
        CompletedProcess(15, "", "qstat: something that nobody foresaw\n"),
    ],
)
def test_from_a_server_that_does_not_answer_nothing_is_concluded(answer):
    scheduler, _ = over(qstat=answer, qdel=answer, qalter=answer, qsub=answer)
    for ask in (scheduler.query, scheduler.account, scheduler.cancel, scheduler.find):
        with pytest.raises(SchedulerUnreachable):
            ask(["9.pbs01"])


def test_an_uncertain_submission_differs_from_a_refused_one():
    for answer in (
        CompletedProcess(-9, "", "", timed_out=True),
        CompletedProcess(0, "thank you\n", ""),
        ConnectionLost("gone"),
        CompletedProcess(1, "", "qsub: End of File\n"),
    ):
        with pytest.raises(SubmissionUncertain):
            over(qsub=answer)[0].submit(job("k1", "true"))
    with pytest.raises(SchedulerUnreachable) as caught:
        over(qsub=CompletedProcess(111, "", "qsub: cannot connect to server pbs01 (errno=111)"))[0].submit(
            job("k1", "true")
        )
    assert not isinstance(caught.value, SubmissionUncertain)
    with pytest.raises(RequestRefused, match="Job violates queue and/or server resource limits"):
        over(qsub=CompletedProcess(188, "", "qsub: Job violates queue and/or server resource limits"))[0].submit(
            job("k1", ":")
        )


def test_jobs_that_ended_are_passed_over_when_they_are_cancelled_and_others_are_not():
    scheduler, played = over(qdel=CompletedProcess(35, "", "qdel: Job has finished 9.pbs01\n"))
    scheduler.cancel(["9.pbs01", "12[].pbs01_3"])
    assert played.asked == [["qdel", "12[3].pbs01", "9.pbs01"]]
    with pytest.raises(SchedulerUnreachable, match="Unauthorized Request"):
        over(qdel=CompletedProcess(159, "", "qdel: Unauthorized Request  9.pbs01\n"))[0].cancel(["9.pbs01"])


def test_only_waiting_jobs_are_deleted_if_running_ones_may_not_be():
    queue = '{"Jobs": {"8.pbs01": {"job_state": "Q"}, "9.pbs01": {"job_state": "R"}}}'
    scheduler, played = over(qstat=CompletedProcess(0, queue, ""), qdel=CompletedProcess(0, "", ""))
    scheduler.cancel(["8.pbs01", "9.pbs01"], waiting=True)
    assert played.asked[-1] == ["qdel", "8.pbs01"]
    scheduler, played = over(qstat=CompletedProcess(0, queue.replace('"Q"', '"R"'), ""))
    scheduler.cancel(["8.pbs01", "9.pbs01"], waiting=True)
    assert [command for command, *_ in played.asked] == ["qstat"]


def test_a_limit_is_written_in_the_format_of_pbs():
    scheduler, played = over(qalter=CompletedProcess(0, "", ""))
    scheduler.change_walltime("9.pbs01", 7200)
    assert played.asked == [["qalter", "-l", "walltime=02:00:00", "9.pbs01"]]
