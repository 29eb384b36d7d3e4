import math
from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.history.sacct import DELIMITER, SACCT_FIELDS, read_sacct, sacct_command

ROW = {
    "JobID": "17", "Submit": "1700000000", "Eligible": "1700000030", "Start": "1700000090", "End": "1700003690",
    "State": "COMPLETED", "User": "ada", "Account": "research", "Partition": "gpu", "QOS": "normal", "ReqNodes": "2",
    "ReqCPUS": "16", "ReqTRES": "billing=16,cpu=16,gres/gpu:a100=4,gres/gpu=4,mem=128G,node=2",
    "TimelimitRaw": "120", "JobName": "train",
}  # fmt: skip


def line(delimiter: str = DELIMITER, **changed: str) -> str:
    return delimiter.join({**ROW, **changed}.values())


def test_a_job_is_read_with_its_request_and_times():
    (job,) = read_sacct(line() + "\n")
    assert (
        job.id, job.user, job.account, job.partition, job.qos, job.name,
    ) == ("17", "ada", "research", "gpu", "normal", "train")  # fmt: skip
    assert (job.nodes, job.cores, job.gpus, job.memory_bytes, job.walltime_s) == (2, 16, 4, 128 * 2**30, 7200.0)
    assert (job.wait_s, job.elapsed_s, job.state) == (60.0, 3600.0, JobState.COMPLETED)


@pytest.mark.parametrize("unknown", ["Unknown", "None", ""])
def test_a_job_that_waits_has_no_start_and_one_that_cannot_start_yet_is_eligible_at_infinity(unknown):
    waits, held = read_sacct(
        line(State="PENDING", Start=unknown, End=unknown)
        + "\n"
        + line(State="PENDING", Start=unknown, End=unknown, Eligible=unknown, Submit="1700000001")
    )
    assert (waits.started_s, waits.ended_s, waits.eligible_s) == (None, None, 1700000030.0)
    assert (None, math.inf) == (held.wait_s, held.eligible_s)


def test_a_job_that_was_cancelled_while_it_waited_ended_without_a_start():
    (job,) = read_sacct(line(State="CANCELLED by 1000", Start="None"))
    assert (job.state, job.started_s, job.ended_s) == (JobState.CANCELLED, None, 1700003690.0)


def test_pending_array_elements_become_separate_jobs():
    jobs = read_sacct(line(JobID="8_[1-3,7%2]", State="PENDING", Start="Unknown", End="Unknown"))
    assert [job.id for job in jobs] == ["8_1", "8_2", "8_3", "8_7"]


def test_written_out_times_are_read_in_their_zone():
    text = line("|", Submit="2023-11-14T23:13:20", Eligible="2023-11-14T23:13:20", Start="2023-11-14T23:14:20")
    (job,) = read_sacct(text, timezone(timedelta(hours=1)))
    assert (job.submitted_s, job.wait_s) == (1700000000.0, 60.0)


def test_missing_limits_and_sizes_stay_unknown():
    (job,) = read_sacct(line(TimelimitRaw="UNLIMITED", ReqTRES="", ReqNodes="", ReqCPUS=""))
    assert (job.walltime_s, job.memory_bytes, job.gpus, job.nodes, job.cores) == (None, None, 0, 1, 1)


def test_gpus_listed_by_type_are_added_up():
    (job,) = read_sacct(line(ReqTRES="cpu=4,gres/gpu:a100=2,gres/gpu:v100=1,node=1"))
    assert job.gpus == 3


@given(st.lists(st.text(st.characters(exclude_characters=DELIMITER, exclude_categories=("Cs",)), max_size=30)))
def test_a_job_may_be_called_anything(names):
    rows = [line(JobID=str(number), JobName=name) for number, name in enumerate(names)]
    assert names == [job.name for job in read_sacct("\n".join(rows) + "\n")]


def test_a_job_name_may_contain_the_delimiter_or_look_like_a_job():
    name = f"a{DELIMITER}b\n99{DELIMITER}1700000000{DELIMITER}x"
    (job,) = read_sacct(line(JobName=name))
    assert name == job.name


def test_other_text_is_refused_with_the_sacct_command():
    with pytest.raises(InvalidInput, match="SLURM_TIME_FORMAT=%s sacct --allusers"):
        read_sacct("JobID State\n1 COMPLETED\n")


def test_an_empty_accounting_has_no_jobs():
    assert read_sacct("") == []


def test_the_command_requests_the_fields_that_are_read():
    assert sacct_command(30)[-1] == f"--format={','.join(SACCT_FIELDS)}"


@pytest.mark.parametrize("moment", ["9" * 5000, "2026-13-45T00:00:00", "٣", "99999999999999"])
def test_a_time_beyond_all_dates_is_unknown(moment):
    start = ["7", "1767225600", "1767225600", moment, moment, "COMPLETED", "ann", "lab", "batch", "normal"]
    row = [*start, "1", "4", "cpu=4", "9" * 5000, "x"]
    (job,) = read_sacct("|".join(row))
    assert (job.started_s, job.ended_s, job.walltime_s) == (None, None, None)
