"""What is handed to qsub, for each flavour of PBS; the script is run by a real shell."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import DependencyKind
from leadline.core.units import GIB
from leadline.execution.schedulers.pbs.script import (
    MAX_NAME_LENGTH,
    PbsFlavour,
    format_walltime,
    job_name,
    job_script,
    qsub_options,
)
from leadline.execution.schedulers.port import Submission
from leadline.execution.wrapper.outcome import read_outcome

OUT = PurePosixPath("/scratch/jobs/k1.out")
SPEC = JobSpec(
    "train mnist",
    ("python", "train.py"),
    ResourceSpec(2, 4, 8, 1, 64 * GIB, 90061.0),
    partition="gpu",
    account="physics",
)


def submission(spec=SPEC, **changes):
    return replace(Submission("k1", spec), **changes)


def array(*indices, **changes):
    return submission(indices=indices, **changes)


def option(words, name):
    return words[words.index(name) + 1]


def test_pbs_professional_gets_chunk_requests():
    words = qsub_options(submission(), PbsFlavour.PRO, OUT)
    assert option(words, "-l") == "select=2:ncpus=32:mpiprocs=4:ngpus=1:mem=65536mb,walltime=25:01:01"
    assert words[:2] == ["-N", "train-mnist.k1"]
    assert ["-q", "gpu", "-A", "physics", "-r", "n", "-j", "oe", "-o", str(OUT)] == words[4:]


def test_torque_gets_node_requests_and_the_memory_of_the_whole_job():
    words = qsub_options(submission(), PbsFlavour.TORQUE, OUT)
    assert option(words, "-l") == "nodes=2:ppn=32:gpus=1,mem=131072mb,walltime=25:01:01"


def test_unrequested_options_are_not_written():
    plain = submission(JobSpec("x", ("true",), ResourceSpec()))
    assert option(qsub_options(plain, PbsFlavour.PRO, OUT), "-l") == "select=1:ncpus=1:mpiprocs=1"
    assert option(qsub_options(plain, PbsFlavour.TORQUE, OUT), "-l") == "nodes=1:ppn=1"


def test_pbs_professional_takes_one_range_of_indices_and_torque_a_list():
    assert option(qsub_options(array(0, 3, 6, 9, most=2), PbsFlavour.PRO, OUT), "-J") == "0-9:3%2"
    assert option(qsub_options(array(0, 1, 3), PbsFlavour.PRO, OUT), "-J") == "0-3"
    assert option(qsub_options(array(5), PbsFlavour.PRO, OUT), "-J") == "5-6"
    assert option(qsub_options(array(0, 1, 7, most=2), PbsFlavour.TORQUE, OUT), "-t") == "0,1,7%2"
    with pytest.raises(InvalidInput, match="too many gaps"):
        qsub_options(array(0, 1, 100), PbsFlavour.PRO, OUT)


def test_dependencies_are_written_in_each_dialect():
    after = submission(after=("3.srv", "4[].srv"), after_kind=DependencyKind.ANY)
    assert option(qsub_options(after, PbsFlavour.PRO, OUT), "-W") == "depend=afterany:3.srv:4[].srv"
    assert option(qsub_options(after, PbsFlavour.TORQUE, OUT), "-W") == "depend=afteranyarray:4[].srv,afterany:3.srv"


@pytest.mark.parametrize("value", ["a b", "x;rm -rf /", "$HOME", "", "a'b", 'a"b', "a\nb"])
def test_a_value_that_a_shell_might_take_for_more_is_refused(value):
    with pytest.raises(InvalidInput):
        qsub_options(submission(replace(SPEC, partition=value)), PbsFlavour.TORQUE, OUT)
    with pytest.raises(InvalidInput):
        qsub_options(submission(key=value or " "), PbsFlavour.PRO, OUT)
    with pytest.raises(InvalidInput):
        qsub_options(submission(), PbsFlavour.PRO, PurePosixPath(f"/scratch/{value or ' '}/k1.out"))


@given(st.text(max_size=200))
def test_any_name_becomes_valid_for_pbs_and_keeps_the_key(name):
    made = job_name(name, "5f0c2ab91d44")
    assert made[0].isalpha()
    assert made.endswith(".5f0c2ab91d44")
    assert made.count(".") == 1
    assert len(made) <= MAX_NAME_LENGTH
    assert not set(made) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def test_a_limit_is_written_whole_and_nonsense_is_refused():
    assert [format_walltime(one) for one in (0.2, 600, 5 * 86400)] == ["00:00:01", "00:10:00", "120:00:00"]
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(InvalidInput):
            format_walltime(wrong)


def run(tmp_path, made, **variables):
    script = tmp_path / "job.sh"
    script.write_text(job_script(made, PurePosixPath(tmp_path), python=sys.executable))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **variables}
    return subprocess.run(["bash", str(script)], env=env, check=False, cwd=tmp_path).returncode


AWKWARD = "a b'c\"d$HOME`e`\\\n*"


def test_the_script_runs_the_measured_command_with_arguments_and_variables(tmp_path):
    code = "import os, sys; print(sys.argv[1], os.environ['MINE'], os.getcwd()); sys.exit(3)"
    (tmp_path / "work here").mkdir()
    spec = JobSpec("x", (sys.executable, "-c", code, AWKWARD), ResourceSpec(), workdir=str(tmp_path / "work here"),
                   environment={"MINE": AWKWARD})  # fmt: skip
    assert run(tmp_path, submission(spec)) == 3
    outcome = read_outcome(tmp_path / "runs" / "k1.json")
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 3)
    assert f"{AWKWARD} {AWKWARD} {tmp_path}/work here\n" == (tmp_path / "runs" / "k1.log").read_text()


def test_a_job_without_a_folder_of_its_own_works_where_it_was_submitted(tmp_path):
    (tmp_path / "submitted from").mkdir()
    made = submission(JobSpec("x", ("pwd",), ResourceSpec()))
    assert run(tmp_path, made, PBS_O_WORKDIR=str(tmp_path / "submitted from")) == 0
    assert f"{tmp_path}/submitted from\n" == (tmp_path / "runs" / "k1.log").read_text()


def test_an_element_gets_its_index_and_an_unwanted_one_exits_at_once(tmp_path):
    made = array(2, 4, spec=JobSpec("x", ("sh", "-c", "echo $LEADLINE_INDEX"), ResourceSpec()))
    assert [run(tmp_path, made, PBS_ARRAY_INDEX="2"), run(tmp_path, made, PBS_ARRAYID="4"),
                         run(tmp_path, made, PBS_ARRAY_INDEX="3")] == [0, 0, 0]  # fmt: skip
    assert {"k1-2", "k1-4"} == {one.stem for one in (tmp_path / "runs").iterdir()}
    assert JobState.COMPLETED is read_outcome(tmp_path / "runs" / "k1-2.json").state
    assert (tmp_path / "runs" / "k1-4.log").read_text() == "4\n"


def test_setup_lines_come_first_and_an_unmeasured_job_leaves_its_end(tmp_path):
    spec = JobSpec("x", ("sh", "-c", "echo $SET; exit 3"), ResourceSpec(), setup=("export SET=up",))
    assert run(tmp_path, submission(spec, measured=False)) == 3
    assert {"k1.log", "k1.started", "k1.ended"} == {one.name for one in (tmp_path / "runs").iterdir()}
    assert (tmp_path / "runs" / "k1.log").read_text() == "up\n"
    (tmp_path / "runs" / "k1.started").unlink()
    assert run(tmp_path, submission(spec)) == 3
    assert (tmp_path / "runs" / "k1.log").read_text() == "up\nup\n"


@pytest.mark.parametrize("measured", [False, True])
def test_a_command_that_pbs_starts_again_has_run_already(tmp_path, measured):
    spec = JobSpec("x", ("sh", "-c", "echo ran; exit 3"), ResourceSpec())
    assert [run(tmp_path, submission(spec, measured=measured)) for _ in range(2)] == [3, 3]
    assert (tmp_path / "runs" / "k1.log").read_text().splitlines().count("ran") == 1


def test_a_second_attempt_knows_that_it_is_one_and_its_folder_has_a_link_to_the_output(tmp_path):
    own = tmp_path / "it's my own"
    own.mkdir()
    words = "echo $LEADLINE_RESTART_COUNT $SLURM_RESTART_COUNT"
    spec = JobSpec("x", ("sh", "-c", words), ResourceSpec(), workdir=str(own))
    assert run(tmp_path, submission(spec, restarts=2, link="3f2a91", measured=False)) == 0
    assert (own / "leadline-3f2a91.out").read_text() == "2 2\n"


def test_the_wrapper_sends_the_checkpoint_signal_under_pbs():
    made = submission(checkpoint_signal="USR1", checkpoint_s=90.0)
    assert "--warning USR1 --warning-s 90.0" in job_script(made, PurePosixPath("/scratch"), python="python3")
