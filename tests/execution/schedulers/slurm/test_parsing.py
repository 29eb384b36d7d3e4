"""What squeue, sacct and scontrol print, in several versions, and what is read from it.

Those of 22.05 were printed by the cluster of these tests. The others are written as https://slurm.schedmd.com/archive/
documents them: sacct of 20.11 ends a requested memory in ``n`` or ``c`` (release notes of 21.08), 24.05 and later know
more flags of a state (job_state_codes.html).
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.jobs import JobState
from leadline.core.units import MIB
from leadline.execution.schedulers.figures import duration_s, size_bytes
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.schedulers.slurm.parsing import (
    by_cluster,
    format_ranges,
    moment_s,
    parse_indices,
    read_accounting,
    read_controller,
    read_forecast,
    read_job_id,
    read_names,
    read_outputs,
    read_queue,
    records,
    with_cluster,
)

REASON = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
QUEUE = f"""\
2_3|PENDING|1795349354|N/A|5:00|0:00|1||leadline:k|nap-k|{REASON}
3|PENDING|1795349354|1795352954|1-00:05:00|0:00|1||||BeginTime
1|RUNNING|1795349353|1795349354|UNLIMITED|1-02:03:04|2|n[1,3-4]|(null)|nap-k|None
4|LAUNCH_FAILED|1795349353|N/A|NOT_SET|INVALID|1-2||||a|b
5|EXPEDITING|2026-11-22T12:00:00|N/A|Partition_Limit|0:00|1||||(null)
"""
SACCT_22 = """\
1|FAILED|0:0|0:125|9|1795349353|1795349354|1795349363|5|1||100M|n1|short|nap-k|
1.batch|FAILED|1:0||9|1795349354|1795349354|1795349363||1|216K||n1|short|nap-k|
1.0|OUT_OF_MEMORY|0:125||7|1795349355|1795349355|1795349362||1|101.50M||n1|short|nap-k|
2|COMPLETED|0:0|0:125|9|1795349353|1795349354|1795349363|5|1||100M|n1|short|nap-k|
2.0|OUT_OF_MEMORY|0:125||7|1795349355|1795349355|1795349362||1|1G||n1|short|nap-k|
3|FAILED|0:9|0:0|9|1795349353|1795349354|1795349363|5|2||100M|n[1-2]|short|nap-k|
3.batch|FAILED|0:9||9|1795349354|1795349354|1795349363||1|99M||n1|short|nap-k|
12|REQUEUED|0:0|0:0|3|1795349380|1795349380|1795349383|5|1||100M|n1|short|nap-k|
12.batch|NODE_FAIL|0:125||4|1795349380|1795349380|1795349384||1|||n1|short|nap-k|
12|CANCELLED by 1000|0:0|0:0|0|1795349385|None|1795349386|5|1||100M|None assigned|short|nap-k|
13|NODE_FAIL|1:0|0:0|3|1795349380|1795349380|1795349383|Partition_Limit|1||100M|n1|short|nap-k|
14|PREEMPTED|0:0|0:0|3|1795349380|1795349380|1795349383|UNLIMITED|1||100M|n1|short|nap-k|
15|OUT_OF_MEMORY|0:125|0:0|3|1795349380|1795349380|1795349383|5|1||100M|n1|short|nap-k|
15.batch|OUT_OF_MEMORY|0:125||4|1795349380|1795349380|1795349384||1|0||n1|short|nap-k|
16|PENDING|0:0|0:0|1|1795349386|1795349387|Unknown||0||16?|n1|short|nap-k|
7_0|COMPLETED|0:0|0:0|5|1795349380|1795349380|1795349383|5|1||100M|n1|short|nap-k|
7_1|FAILED|3:0|0:0|5|1795349380|1795349380|1795349383|5|1||100M|n1|short|nap-k|
7_[4-8%2]|CANCELLED by 0|0:0|0:0|0|1795349380|None|1795349383|5|1||100M|None assigned|short|nap-k|
8|FAILED|1:0|0:0|1|1795349380|1795349380|1795349383|5|1||100M|n1|short|nap-k|
9|CANCELLED by 0|0:0|0:0|0|1795349380|None|1795349383|5|1||100M|None assigned|short|nap-k|
"""
SACCT_20 = """\
1|FAILED|0:9|0:0|9|2026-11-22T12:09:13|2026-11-22T12:09:14|2026-11-22T12:09:23|5|1||100Mn|n1|short|nap-k|
1.batch|FAILED|0:9||9|2026-11-22T12:09:14|2026-11-22T12:09:14|2026-11-22T12:09:23||1|103424K||n1|short|nap-k|
2|FAILED|0:9|0:0|9|2026-11-22T12:09:13|2026-11-22T12:09:14|2026-11-22T12:09:23|5|1||100Mc|n1|short|nap-k|
2.batch|FAILED|0:9||9|2026-11-22T12:09:14|2026-11-22T12:09:14|2026-11-22T12:09:23||1|203424K||n1|short|nap-k|
"""
SACCT_24 = """\
1+0|RUNNING|0:0|0:0|9|1795349353|1795349354|Unknown|5|1||100M|n1|short|nap-k|
2|LAUNCH_FAILED|0:0|0:0|9|1795349353|1795349354|Unknown|5|1||100M|n1|short|nap-k|
3|DEADLINE|0:0|0:0|9|1795349353|1795349354|1795349363|5|1||100M|n1|short|nap-k|
4|BOOT_FAIL|0:0|0:0|9|1795349353|1795349354|1795349363|5|1||100M|n1|short|nap-k|
"""
CONTROLLER = (
    "JobId=11 ArrayJobId=10 ArrayTaskId=2 JobName=nap-key UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 "
    "Nice=0 Account=research QOS=normal JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=0 Restarts=0 "
    "BatchFlag=1 Reboot=0 ExitCode=3:0 DerivedExitCode=0:125 RunTime=00:01:02 TimeLimit=1-00:05:00 TimeMin=N/A "
    "SubmitTime=1795349353 EligibleTime=1795349353 StartTime=1795349354 EndTime=1795349416 Partition=short "
    "NodeList=n1 BatchHost=n1 NumNodes=1 NumCPUs=1 TRES=cpu=1,mem=100M,node=1 Comment=leadline:key JobState=FAKE"
)


def test_the_queue_is_read_with_reasons_that_hold_anything():
    found = read_queue(QUEUE, ["1", "2_3", "3", "4", "5", "6"])
    waits = found["2_3"]
    assert (waits.state, waits.reason, waits.walltime_s) == (JobState.PENDING, REASON, 300.0)
    assert (
        SchedulerStatus(
            JobState.PENDING,
            "BeginTime",
            1795349354.0,
            expected_start_s=1795352954.0,
            walltime_s=86700.0,
            elapsed_s=0.0,
            nodes=1,
        )
        == found["3"]
    )
    assert (
        SchedulerStatus(
            JobState.RUNNING, "", 1795349353.0, 1795349354.0, elapsed_s=93784.0, nodes=2, node="n[1,3-4]", name="nap-k"
        )
        == found["1"]
    )
    assert (found["4"].state, found["4"].reason, found["4"].walltime_s) == (
        JobState.UNKNOWN,
        "LAUNCH_FAILED: a|b",
        None,
    )
    assert JobState.PENDING is found["5"].state
    assert "6" not in found
    assert {"3"} == set(read_queue(QUEUE, ["3"]))


def test_a_status_under_a_reused_id_is_recognized():
    found = read_queue(QUEUE, ["1", "2_3", "3"])
    assert all(found[one].bears("k") for one in ("1", "2_3", "3"))
    assert not found["1"].bears("other")
    assert not found["2_3"].bears("other")
    accounted = read_accounting(SACCT_22, ["1"])["1"]
    assert (accounted.bears("k"), accounted.bears("other")) == (True, False)


def test_a_hundred_thousand_jobs_are_read_and_only_the_requested_ones_returned():
    lines = [f"{number}|PENDING|1795349354|N/A|5:00|0:00|1||leadline:k|nap-k|Priority" for number in range(100_000)]
    listing, ids = "\n".join(lines), [str(number) for number in range(100_000)]
    assert len(read_queue(listing, ids)) == 100_000
    assert len(read_queue(listing, ids[:5000])) == 5000


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=300))
def test_unexpected_progress_lines_are_no_error(text):
    for listing in (text, f"1|{text}", f"1|{'|'.join(text)}"):
        read_queue(listing, ["1"])
        read_accounting(listing, ["1", "1_2"])
        read_controller(listing, ["1", "1_2"])
        read_names(records(listing, "<mark>", 6), ["a"])
        read_forecast(listing)
        for read in (JobState.from_slurm, duration_s, size_bytes, moment_s):
            read(text)


def test_the_steps_show_out_of_memory_although_the_job_is_failed():
    found = read_accounting(SACCT_22, ["1", "2", "3", "15"])
    assert (found["1"].state, found["1"].exit_code) == (JobState.OUT_OF_MEMORY, 0)
    assert "step 1.0 ran out of memory" in found["1"].evidence
    assert "step 1.batch ended FAILED with exit code 1:0" in found["1"].evidence
    assert int(101.5 * MIB) == found["1"].memory_bytes
    assert (found["2"].state, found["2"].evidence[:1]) == (JobState.COMPLETED, ("step 2.0 ran out of memory",))
    assert (found["3"].state, found["3"].signal, found["3"].exit_code) == (JobState.FAILED, 9, None)
    assert "one of its tasks used 99.0 MiB of the requested 100 MiB" in found["3"].evidence
    assert (found["15"].state, found["15"].signal, found["15"].memory_bytes) == (JobState.OUT_OF_MEMORY, None, None)


def test_the_last_incarnation_of_a_requeued_job_holds_without_the_steps_of_the_earlier():
    status = read_accounting(SACCT_22, ["12"], owner="1000")["12"]
    assert (
        SchedulerStatus(
            JobState.CANCELLED,
            "by 1000",
            1795349385.0,
            None,
            1795349386.0,
            walltime_s=300.0,
            elapsed_s=0.0,
            nodes=1,
            evidence=("its run on n1 was REQUEUED",),
            name="nap-k",
            partition="short",
            by_owner=True,
        )
        == status
    )


def test_node_failures_and_preemptions_are_distinguished():
    found = read_accounting(SACCT_22, ["13", "14", "16", "99"])
    assert (found["13"].state, found["14"].state) == (JobState.NODE_FAIL, JobState.PREEMPTED)
    assert (found["13"].walltime_s, found["14"].walltime_s) == (None, None)
    assert (found["16"].state, found["16"].nodes) == (JobState.PENDING, None)  # not all of it is there yet
    assert "99" not in found


def test_elements_of_an_array_have_rows_of_their_own_or_share_one():
    ids = ["7_0", "7_1", "7_2", *(f"7_{index}" for index in range(4, 9)), "8_1", "9_3"]
    found = read_accounting(SACCT_22, ids)
    assert (found["7_0"].state, found["7_1"].state) == (JobState.COMPLETED, JobState.FAILED)
    assert {JobState.CANCELLED} == {found[f"7_{index}"].state for index in range(4, 9)}
    assert "7_2" not in found
    assert "8_1" not in found  # which element of array 8 failed is not known yet
    assert JobState.CANCELLED is found["9_3"].state


def test_an_older_slurm_is_read_too():
    found = read_accounting(SACCT_20, ["1", "2"])
    assert moment_s("2026-11-22T12:09:13") == found["1"].submitted_s
    assert any("used 101 MiB of the requested 100 MiB" in one for one in found["1"].evidence)
    assert not any("requested" in one for one in found["2"].evidence)  # by core: how much in all is not said


def test_a_newer_slurm_is_read_too():
    found = read_accounting(SACCT_24, ["1", "2", "3", "4"])
    assert tuple(found[number].state for number in ("1", "2", "3", "4")) == (
        JobState.RUNNING,
        JobState.UNKNOWN,
        JobState.TIMEOUT,
        JobState.NODE_FAIL,
    )
    assert found["2"].reason == "LAUNCH_FAILED"


def test_the_controller_reports_one_job():
    (status,) = read_controller(CONTROLLER, ["10_2"]).values()
    assert (status.state, status.exit_code, status.walltime_s, status.elapsed_s) == (
        JobState.OUT_OF_MEMORY,
        3,
        86700.0,
        62.0,
    )
    assert (status.submitted_s, status.started_s, status.ended_s, status.node, status.nodes) == (
        1795349353.0,
        1795349354.0,
        1795349416.0,
        "n1",
        1,
    )
    assert read_controller("slurm_load_jobs error: Invalid job id specified", ["10_2"]) == {}


def test_the_controller_reports_array_elements():
    lines = [
        f"JobId={9 + at} ArrayJobId=9 ArrayTaskId={at} JobName=a JobState={said} ExitCode=0:0"
        for at, said in enumerate(["COMPLETED", "RUNNING", "COMPLETED"])
    ]
    waiting = "JobId=9 ArrayJobId=9 ArrayTaskId=3-7%2 JobName=a JobState=PENDING"
    found = read_controller("\n".join([*lines, waiting]), ["9_0", "9_1", "9_3"])
    states = {"9_0": JobState.COMPLETED, "9_1": JobState.RUNNING, "9_3": JobState.PENDING}
    assert {one: it.state for one, it in found.items()} == states


def test_names_that_hold_anything_are_not_taken_for_others():
    mark = "<7f3a>"
    rows = [
        ("12_[0-3]", "PENDING", "", "leadline:a", "x\n9|y", ""),
        ("13", "RUNNING", "n1", "(null)", "nap-b", "/x/runs/b.log"),
        ("14", "RUNNING", "n1", "leadline:other", "nap-c", ""),
        ("11", "COMPLETED", "n1", "", "again-b", ""),
        ("15", "FAILED", "None assigned", "", "nap-d", ""),
        ("16", "FAILED", "", "leadline:e", "nap-e", "/x/runs/e.log"),
        ("17", "FAILED", "n1", "\n", "nap-f-g\n", "/home/z/runs.log"),
        ("18", "RUNNING", "n1", "by the site", "user_17", "/x y/50%/runs/h.log"),
        ("19_[1-4]", "PENDING", "", "", "user_18", "sbatch --parsable --output=/x y/50%%/runs/i-%a.log --chdir=/x y"),
        ("20_3", "RUNNING", "n1", "", "user_19", "/x/runs/j-k-3.log\n"),
    ]
    listing = "\n".join("".join(f"{mark}{one}" for one in row) for row in rows)
    keys = ["a", "b", "c", "d", "e", "g", "f-g", "9", "h", "i", "j-k", "j"]
    found = {"a": "12", "b": "11", "f-g": "17", "h": "18", "i": "19", "j-k": "20"}
    assert read_names(records(listing, mark, 6), keys) == found


def test_a_job_whose_comment_and_name_the_site_rewrites_bears_its_key_by_its_files():
    line = (
        CONTROLLER.replace("leadline:key", "(null)").replace("JobName=nap-key", "JobName=x")
        + " StdOut=/a b/runs/key-2.log"
    )
    assert read_controller(line, ["10_2"])["10_2"].bears("key")
    row = "1|FAILED|1:0|0:0|9|1795349353|1795349354|1795349363|5|1||100M|n1|short|x|sbatch --job-name=nap-k -o /x"
    assert read_accounting(row, ["1"])["1"].bears("k")
    assert not read_accounting(row, ["1"])["1"].bears("x")
    outputs = "<m>12_3<m>/x/runs/a-3.log<m>\n13<m>/x/runs/a-3.log<m>\n14<m>slurm-14.out<m>\n"
    assert read_outputs(records(outputs, "<m>", 2)) == {"12_3": "a", "13": "a-3"}


def test_who_cancelled_a_job_is_read_by_the_users_number():
    row = "1|CANCELLED by {}|0:0|0:0|9|1795349353|1795349354|1795349363|5|1||100M|n1|short|nap-k|"
    owners = [read_accounting(row.format(uid), ["1"], owner="1000")["1"].by_owner for uid in (1000, 0, 10000)]
    assert owners == [True, False, False]
    assert read_accounting(row.replace(" by {}", ""), ["1"], owner="1000")["1"].by_owner is None
    assert read_accounting(row.format(1000), ["1"])["1"].by_owner is None


FEDERATION = """\
67108869|REVOKED|0:0|0:0|0|1795349353|None|1795349354|10|1||100M|None assigned|short|nap-k|
67108869|RUNNING|0:0|0:0|7|1795349353|1795349354|Unknown|10|1||100M|n7|short|nap-k|
67108870|COMPLETED|0:0|0:0|7|1795349353|1795349354|1795349361|10|1||100M|n7|short|nap-k|
67108870.batch|COMPLETED|0:0||7|1795349354|1795349354|1795349361||1|2M||n7||batch|
67108870|REVOKED|0:0|0:0|0|1795349353|None|1795349354|10|1||100M|None assigned|short|nap-k|
67108871|REVOKED|0:0|0:0|0|1795349353|None|1795349354|10|1||100M|None assigned|short|nap-k|
"""


def test_a_revoked_sibling_is_no_end_of_a_federated_job():
    found = read_accounting(FEDERATION, ["67108869", "67108870", "67108871"])
    assert [status.state for status in found.values()] == [JobState.RUNNING, JobState.COMPLETED, JobState.UNKNOWN]
    assert [status.node for status in found.values()] == ["n7", "n7", None]
    queue = "67108871|REVOKED|1795349354|1795349355|5:00|0:00|1||leadline:k|nap-k|None\n"
    assert not read_queue(queue, ["67108871"])["67108871"].state.final


@pytest.mark.parametrize(("text", "job_id"), [("12\n", "12"), ("12;east\n", "east:12"), ("note 12\n", None)])
def test_the_cluster_of_a_job_is_part_of_its_id(text, job_id):
    assert read_job_id(text) == job_id
    ids = ["12", "east:7_1", "my_west:8", "east:7_2"]
    assert by_cluster(ids) == {"": ["12"], "east": ["7_1", "7_2"], "my_west": ["8"]}
    assert {with_cluster(name, number) for name, numbers in by_cluster(ids).items() for number in numbers} == set(ids)


@pytest.mark.parametrize(
    ("said", "moment"),
    [
        ("sbatch: Job 5 to start at 1795349658 using 1 processors on nodes n1 in partition short", 1795349658.0),
        ("sbatch: Job 5 to start at 2026-01-02T10:00:00 using 1 processors", moment_s("2026-01-02T10:00:00")),
        ("allocation failure: Requested node configuration is not available", None),
    ],
)
def test_a_forecast_is_a_moment(said, moment):
    assert moment == read_forecast(said)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("1-02:03:04", 93784.0),
        ("05:00", 300.0),
        ("02:03:04", 7384.0),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_durations(said, seconds):
    assert seconds == duration_s(said)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_indices_are_written_and_read_again(indices):
    assert sorted(indices) == parse_indices(format_ranges(indices))


def test_indices_with_steps_and_throttles_are_read():
    assert parse_indices("[0-8:4,11%2]") == [0, 4, 8, 11]
    assert parse_indices("N/A") == []


HEAD = "JobId={id} JobName=nap-key UserId=u(1000) GroupId=u(1000) MCS_label=N/A Priority=1 Nice=0 Account=a QOS=normal "
TIMES = "SubmitTime=1795349353 EligibleTime=1795349353 AccrueTime=1795349353 StartTime={start} EndTime={end} "
VERSIONS = {
    "23.02": (
        HEAD.format(id=7) + "JobState=PENDING Reason=JobHeldAdmin Dependency=(null) Requeue=0 Restarts=1 BatchFlag=1 "
        "Reboot=0 ExitCode=0:0 DerivedExitCode=0:0 RunTime=00:00:00 TimeLimit=00:10:00 TimeMin=N/A "
        + TIMES.format(start="Unknown", end="Unknown") + "Partition=short AllocNode:Sid=login1:9 NodeList= "
        "NumNodes=1-1 NumCPUs=1 TRES=cpu=1,mem=100M Comment=leadline:key StdOut=/x/runs/key.log Power=",
        "7", JobState.PENDING, "JobHeldAdmin", None,
    ),
    "23.11": (
        HEAD.format(id=12) + "ArrayJobId=9 ArrayTaskId=3 JobState=RUNNING Reason=None Dependency=(null) Requeue=0 "
        "Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 DerivedExitCode=0:0 RunTime=00:00:05 TimeLimit=00:10:00 "
        + TIMES.format(start=1795349354, end=1795349954) + "Partition=short AllocNode:Sid=login1:9 NodeList=n1 "
        "BatchHost=n1 NumNodes=1 NumCPUs=1 NumTasks=1 ReqTRES=cpu=1 AllocTRES=cpu=1 Comment=leadline:key",
        "9_3", JobState.RUNNING, "", "n1",
    ),
    "24.05": (
        HEAD.format(id=9) + "ArrayJobId=9 ArrayTaskId=4-6,8%2 ArrayTaskThrottle=2 JobState=PENDING "
        "Reason=JobArrayTaskLimit Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 ExitCode=0:0 RunTime=00:00:00 "
        "TimeLimit=00:10:00 " + TIMES.format(start="Unknown", end="Unknown") + "Partition=short NodeList= NumNodes=1 "
        "Comment=site StdErr= StdIn=/dev/null StdOut=/a b/runs/key-%a.log",
        "9_8", JobState.PENDING, "JobArrayTaskLimit", None,
    ),
    "24.11": (
        HEAD.format(id=7) + "JobState=NODE_FAIL Reason=NodeDown Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 "
        "ExitCode=0:0 DerivedExitCode=0:0 RunTime=00:01:00 TimeLimit=00:10:00 "
        + TIMES.format(start=1795349354, end=1795349414) + "Partition=short NodeList=n1 NumNodes=1 SegmentSize=1 "
        "Comment=leadline:key",
        "7", JobState.NODE_FAIL, "NodeDown", "n1",
    ),
    "25.05": (
        HEAD.format(id=7) + "JobState=CANCELLED Reason=DependencyNeverSatisfied Dependency=afterok:6(failed) Requeue=0 "
        "Restarts=0 BatchFlag=1 ExitCode=0:0 RunTime=00:00:00 TimeLimit=00:10:00 "
        + TIMES.format(start=1795349414, end=1795349414) + "Partition=short NodeList= NumNodes=1 Licenses=(null) "
        "LicensesAlloc=(null) Comment=leadline:key",
        "7", JobState.CANCELLED, "DependencyNeverSatisfied", None,
    ),
}  # fmt: skip
"""What ``scontrol --oneliner show job`` prints, by version."""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_controllers_of_later_versions_are_read(version):
    line, job_id, state, reason, node = VERSIONS[version]
    (status,) = read_controller(line, [job_id, "1"]).values()
    assert (status.state, status.reason, status.node, status.walltime_s) == (state, reason, node, 600.0)
    assert (status.bears("key"), status.partition) == (True, "short")


@pytest.mark.parametrize(
    "word", ["PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"]
)
def test_a_job_that_is_put_back_into_the_queue_has_not_ended(word):
    row = f"1|{word}|0:0|0:0|9|1795349353|1795349354|1795349363|5|1||100M|n1|short|nap-k|"
    assert read_accounting(row, ["1"])["1"].state is JobState.PENDING
    queue = f"1|{word}|1795349354|N/A|5:00|0:00|1||leadline:k|nap-k|job requeued in held state\n"
    assert read_queue(queue, ["1"])["1"].state is JobState.PENDING
