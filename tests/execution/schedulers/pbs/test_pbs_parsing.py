"""What qsub and qstat say, in the forms that the guides of PBS Professional and of Torque document."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.jobs import JobState
from leadline.execution.schedulers.figures import duration_s, size_bytes
from leadline.execution.schedulers.pbs.parsing import (
    array_id,
    job_key,
    job_status,
    leadline_id,
    pbs_id,
    read_job_id,
    read_qstat_json,
    read_qstat_text,
    short_id,
)

SAID = Path(__file__).parent / "outputs"


def said(name):
    return (SAID / name).read_text()


def epoch(text):
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


def test_wrapped_qstat_values_are_joined_and_not_parsed_as_attributes():
    jobs = read_qstat_text(said("torque-wrapped.txt"))
    assert list(jobs) == ["9.head01.hpc.example.org", "48[].head01.hpc.example.org_1", "50.head01.hpc.example.org"]
    first = jobs["9.head01.hpc.example.org"]
    assert first["job_state"] == "C"
    assert first["error_path"] == "login01.hpc.example.org:/home/ada/a rather long path that is broken/jobs/9.e"
    assert first["comment"].endswith("its last words were = 42")
    assert first["job_name"] == "train-mnist.5f0c2ab91d44"
    assert tuple(job_key(job) for job in jobs.values()) == ("5f0c2ab91d44", "77aa01", "")


def test_a_job_completed_by_torque_is_fully_described():
    status = job_status(read_qstat_text(said("torque-wrapped.txt"))["9.head01.hpc.example.org"])
    assert (status.state, status.exit_code, status.signal) == (JobState.COMPLETED, 0, None)
    assert (status.node, status.nodes) == ("node07,node08", 2)
    assert (status.elapsed_s, status.walltime_s, status.memory_bytes) == (60.0, 3600.0, 3624 * 1024)
    assert epoch("2018-05-29 09:37:00") == status.submitted_s
    assert epoch("2018-05-29 09:37:01") == status.started_s
    assert epoch("2018-05-29 09:38:01") == status.ended_s


def test_a_deleted_element_is_cancelled_with_a_reason():
    jobs = read_qstat_text(said("torque-wrapped.txt"))
    status = job_status(jobs["48[].head01.hpc.example.org_1"])
    assert (status.state, status.signal) == (JobState.CANCELLED, 15)
    assert status.reason.endswith("its dependency of array 43[].head01.hpc.example.org can never be satisfied")
    assert JobState.PENDING is job_status(jobs["50.head01.hpc.example.org"]).state


def test_json_with_line_ends_is_parsed_and_elements_are_separated():
    jobs = read_qstat_json(said("pro-history.json"))
    assert jobs["4732778.pbs01"]["resource_list.walltime"] == "48:00:00"
    states = {number: job_status(job).state for number, job in jobs.items() if number != "4732779[].pbs01"}
    assert states == {
        "4732778.pbs01": JobState.COMPLETED,
        "4732779[].pbs01_0": JobState.FAILED,
        "4732779[].pbs01_1": JobState.RUNNING,
        "4732779[].pbs01_2": JobState.PENDING,
    }
    waits = job_status(jobs["4732779[].pbs01_2"])
    assert epoch("2024-03-12 15:00:00") == waits.expected_start_s
    assert "Insufficient amount of resource: ncpus" in waits.reason
    assert job_status(jobs["4732778.pbs01"]).memory_bytes == 1622428 * 1024


def test_invalid_json_falls_back_to_text():
    assert read_qstat_json('{"Jobs": {"1.s": {"Variable_List": {"A": "say "hi""}}}}') is None
    assert read_qstat_json('{"timestamp": 1, "pbs_version": "22"}') == {}


def test_slurms_imitation_indents_by_tabs_and_does_not_say_how_a_job_ended():
    (job,) = read_qstat_text(said("slurm-torque.txt")).values()
    assert job_key(job) == "k1"
    status = job_status(job)
    assert JobState.UNKNOWN is status.state
    assert "PBS does not report" in status.reason
    assert (status.walltime_s, status.node, status.started_s) == (60.0, "one", None)


@pytest.mark.parametrize(
    ("code", "beside", "state", "signal"),
    [
        ("0", {}, JobState.COMPLETED, None),
        ("3", {}, JobState.FAILED, None),
        ("143", {}, JobState.FAILED, 15),
        ("265", {}, JobState.CANCELLED, 9),
        ("271", {}, JobState.CANCELLED, 15),
        ("271", {"resources_used.walltime": "00:10:07", "resource_list.walltime": "00:10:00"}, JobState.TIMEOUT, 15),
        ("271", {"comment": "job killed: walltime 152 exceeded limit 120"}, JobState.TIMEOUT, 15),
        ("271", {"comment": "job killed: vmem 192GB exceeded limit 190GB"}, JobState.OUT_OF_MEMORY, 15),
        ("265", {"resources_used.mem": "2097152kb", "resource_list.mem": "2gb"}, JobState.OUT_OF_MEMORY, 9),
        ("-27", {}, JobState.OUT_OF_MEMORY, None),
        ("-29", {}, JobState.TIMEOUT, None),
        ("-3", {}, JobState.NODE_FAIL, None),
    ],
)
def test_the_end_of_a_job_follows_from_its_exit_status_and_comment(code, beside, state, signal):
    status = job_status({"job_state": "F", "exit_status": code, **beside})
    assert (state, signal) == (status.state, status.signal)


@pytest.mark.parametrize(
    ("letters", "state"),
    [("QHWT", JobState.PENDING), ("REBSU", JobState.RUNNING), ("MZ", JobState.UNKNOWN), ("FCX", JobState.UNKNOWN)],
)
def test_every_letter_is_a_state_and_an_unknown_one_is_kept(letters, state):
    assert {state} == {job_status({"job_state": letter}).state for letter in letters}
    assert "'Z'" in job_status({"job_state": "Z"}).reason


def test_ids_are_found_among_other_output_of_a_site():
    assert read_job_id("Welcome to the centre\n12.pbs01\n") == "12.pbs01"
    assert read_job_id("12[].pbs01\n") == "12[].pbs01"
    assert read_job_id("7\n") == "7"
    assert read_job_id("qsub: unknown queue 7\n") is None


@given(st.integers(0, 10**7), st.integers(0, 10**5), st.sampled_from(["", ".pbs01", ".head-1.example.org"]))
def test_an_elements_id_has_two_forms_of_the_same(number, index, server):
    whole = f"{number}[]{server}"
    element = f"{whole}_{index}"
    assert f"{number}[{index}]{server}" == pbs_id(element)
    assert element == leadline_id(pbs_id(element))
    assert whole == array_id(element) == array_id(whole) == pbs_id(whole)
    assert f"{number}[]_{index}" == short_id(element)
    assert str(number) == short_id(f"{number}{server}")


def test_sizes_and_times_are_read_and_others_are_not_known():
    assert [size_bytes(one) for one in ("1kb", "1gb", "5b", "3", "x", "")] == [1024, 2**30, 5, 3, None, None]
    assert [duration_s(one) for one in ("25:01:01", "1:01", "5", "1:x", "")] == [90061.0, 61.0, 5.0, None, None]


@pytest.mark.parametrize("end", ["", "-3", ".3", ".^array_index^"])
def test_a_job_that_a_hook_renames_is_known_by_its_output_file(end):
    assert job_key({"job_name": "site.7", "output_path": f"login1:/home/a b/jobs/k-1.out{end}"}) == "k-1"
    assert job_key({"job_name": "nap.k-1", "output_path": "login1:/home/a/site.out"}) == "k-1"
