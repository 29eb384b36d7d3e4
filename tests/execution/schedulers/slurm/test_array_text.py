"""What Slurm prints, as it was printed, and what is read from it."""

from pathlib import PurePosixPath

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.systems import NodeType, Partition, SubmitRules
from leadline.core.units import GIB
from leadline.execution.schedulers.slurm.array_text import (
    MAX_ARRAY_SIZE,
    WHOLE_ARRAY,
    QueuedElement,
    array_script,
    group_by_shape,
    read_array_id,
    read_sacct,
    read_squeue,
)
from leadline.execution.schedulers.slurm.parsing import read_job_id

SPEC = JobSpec("fft", ("python", "fft.py"), ResourceSpec(cores_per_task=4, memory_bytes_per_node=GIB, walltime_s=90.0))
SACCT = """\
7_0|COMPLETED|0:0|0:0|00:00:05|one|2026-01-02T10:00:00|2026-01-02T10:00:05
7_0.batch|COMPLETED|0:0||00:00:05|one|2026-01-02T10:00:00|2026-01-02T10:00:05
7_1|FAILED|0:0|0:125|1-00:00:01|one|2026-01-02T10:00:00|2026-01-03T10:00:01
7_1.batch|COMPLETED|0:0||00:00:05|one|2026-01-02T10:00:00|2026-01-02T10:00:05
7_1.0|OUT_OF_MEMORY|0:125||00:00:05|one|2026-01-02T10:00:00|2026-01-02T10:00:05
7_2|CANCELLED by 1000|0:15|0:0|00:00:05|None assigned|Unknown|Unknown
7_3|FAILED|0:9|0:0|00:00:02|two|2026-01-02T10:00:00|2026-01-02T10:00:02
7_[4-9]|CANCELLED by 0|0:0|0:0|00:00:00|None assigned|Unknown|Unknown
12|CANCELLED by 0|0:0|0:0|00:00:00|None assigned|Unknown|2026-01-02T10:00:01
13|FAILED|1:0|0:0|00:00:01|one|2026-01-02T10:00:00|2026-01-02T10:00:01
"""


def array(spec=SPEC, partition=None, **changes):
    options = {"key": "abc", "count": 12, "most": 3, "lookup": PurePosixPath("/c/arrays/abc.json"), "python": "/py"}
    return array_script(spec, partition, **{**options, **changes})


def test_an_array_requests_once_what_each_element_needs():
    script = array()
    assert "#SBATCH --job-name=fft-abc\n#SBATCH --comment=leadline:abc\n" in script
    assert "#SBATCH --cpus-per-task=4\n#SBATCH --mem=1024M\n#SBATCH --time=00:02:00\n" in script
    assert "#SBATCH --array=0-11%3\n#SBATCH --no-requeue\n" not in script
    assert "#SBATCH --output=/c/arrays/abc.out\n#SBATCH --array=0-11%3\n" in script
    assert script.endswith(
        '\nexec /py -P -m leadline.execution.array_element /c/arrays/abc.json "$SLURM_ARRAY_TASK_ID"\n'
    )
    assert "#SBATCH --array=0-11\n" in array(most=None)


def test_spaces_in_paths_are_quoted_and_percent_signs_escaped():
    assert "#SBATCH --output='/my c/50%%/abc.out'\n" in array(lookup=PurePosixPath("/my c/50%/abc.json"))


def test_the_rules_of_the_partition_hold_for_arrays_too():
    partition = Partition("cpu", NodeType("n", cores=2), rules=SubmitRules(rejects=("--mem",)))
    with pytest.raises(InvalidInput, match="4 cores a node are not available in partition cpu"):
        array(partition=partition)


def test_jobs_of_one_shape_share_an_array_within_slurms_limit():
    other = JobSpec("fft", ("python", "other.py"), ResourceSpec(cores_per_task=8))
    many = [*((f"a{n}", SPEC) for n in range(MAX_ARRAY_SIZE + 1)), ("b", other)]
    assert [len(keys) for _, keys in group_by_shape(many)] == [MAX_ARRAY_SIZE, 1, 1]


@pytest.mark.parametrize(
    ("said", "found"), [("12\n", "12"), ("12;cluster\n", "12"), ("sbatch: note\n13\n", "13"), ("", None), ("no", None)]
)
def test_the_id_is_what_sbatch_prints(said, found):
    assert found == read_job_id(said)


def test_the_queue_is_read_with_reasons_that_hold_spaces_and_commas():
    found = read_squeue(
        "7|0|RUNNING|None\n7|1|PENDING|Nodes required for job are DOWN, DRAINED\n"
        "8|[2-3,5%1]|PENDING|\n9|N/A|PENDING|x\n"
    )
    assert QueuedElement(JobState.RUNNING, "None") == found["7", 0]
    assert found["7", 1].reason == "Nodes required for job are DOWN, DRAINED"
    assert {("8", 2), ("8", 3), ("8", 5)} == {one for one in found if one[0] == "8"}
    assert ("9", 0) not in found


def test_a_state_that_is_not_known_is_unknown():
    assert JobState.UNKNOWN is read_squeue("7|0|BRAND_NEW|x")["7", 0].state


def test_the_accounting_is_read_with_its_steps():
    found = read_sacct(SACCT)
    assert JobState.COMPLETED is found["7", 0].state
    assert (found["7", 1].state, found["7", 1].elapsed_s) == (JobState.OUT_OF_MEMORY, 86401.0)
    assert (found["7", 2].state, found["7", 2].node, found["7", 2].start) == (JobState.CANCELLED, None, None)
    assert (found["7", 3].state, found["7", 3].signal, found["7", 3].node) == (JobState.FAILED, 9, "two")
    assert {JobState.CANCELLED} == {found["7", index].state for index in range(4, 10)}
    assert (found["12", WHOLE_ARRAY].state, len(found)) == (JobState.CANCELLED, 11)  # 13 may be any of its elements


def test_an_array_is_found_by_the_ids_of_its_elements():
    assert read_array_id("12_3\n") == "12"
    assert read_array_id("12_[0-3]") == "12"
    assert None is read_array_id("")
