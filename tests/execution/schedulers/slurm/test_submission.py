"""What a submission is handed to sbatch as, and what sbatch's answers mean."""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import DependencyKind
from leadline.core.processes import CompletedProcess
from leadline.core.systems import NodeType, Partition, SubmitRules
from leadline.execution.schedulers.port import RequestRefused, SchedulerBusy, Submission, SubmissionUncertain
from leadline.execution.schedulers.slurm.commands import SlurmCommands
from leadline.execution.schedulers.slurm.script import ClusterPython, batch_script, sbatch_arguments
from leadline.execution.transport.port import ConnectionLost, LocalTransport

FOLDER = PurePosixPath("/my jobs/50%")
SPEC = JobSpec("fft", ("true",), ResourceSpec(cores_per_task=2, walltime_s=3600.0), partition="long")
ONE = Submission("k1", SPEC)
ARRAY = Submission("b1", SPEC, indices=(3, 5), most=2)
MEASURER = ClusterPython("/opt/it's/python", "/opt/it's/wrapper.py")
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30)


def shell(spec):
    """Return what the script of a job prints, cut at its NUL characters."""
    script = batch_script(replace(ONE, spec=spec, measured=False), None, FOLDER, None)
    return run_script(script, SLURM_JOB_NAME="fft-k1").split(b"\0")


def run_script(script, **env):
    """Return what a script prints with these variables of Slurm."""
    env = {"PATH": os.environ["PATH"], **env}
    return subprocess.run(["bash"], input=script.encode(), env=env, capture_output=True, check=True).stdout


def test_a_script_that_is_submitted_by_hand_has_the_key_of_its_job():
    script = batch_script(replace(ONE, spec=replace(SPEC, command=("env",)), measured=False), None, FOLDER, None)
    assert "#SBATCH --job-name=fft\n" in script
    assert "k1" not in script
    for name, key in (("fft-k1", b"k1"), ("fft", b"77"), ("other", b"77")):
        assert b"LEADLINE_KEY=" + key in run_script(script, SLURM_JOB_NAME=name, SLURM_JOB_ID="77").splitlines()


def test_the_number_of_earlier_attempts_is_exported_from_the_second_on():
    environment = replace(SPEC, command=("env",))
    for restarts, lines in ((0, []), (2, [b"LEADLINE_RESTART_COUNT=2", b"SLURM_RESTART_COUNT=2"])):
        again = replace(ONE, spec=environment, measured=False, restarts=restarts)
        printed = run_script(batch_script(again, None, FOLDER, None), SLURM_JOB_NAME="fft-k1").splitlines()
        assert sorted(line for line in printed if b"RESTART_COUNT" in line) == lines


def test_the_wrapper_knows_the_signal_that_slurm_sends():
    warned = replace(ONE, checkpoint_signal="SIGTERM", checkpoint_s=90.0)
    script = batch_script(warned, None, FOLDER, MEASURER)
    assert "#SBATCH --signal=B:TERM@90\n" in script
    assert "--warning TERM --warning-s 90 --site-walltime-s 3600" in script


def test_the_link_to_the_output_has_the_name_that_sbatch_gives(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "k1.log").write_text("said")
    own = tmp_path / "it's my own"
    own.mkdir()
    linked = replace(ONE, spec=replace(SPEC, workdir=str(own)), measured=False, link="3f2a91")
    script = batch_script(linked, None, PurePosixPath(tmp_path), None)
    run_script(script, SLURM_JOB_NAME="fft", SLURM_JOB_ID="76")
    assert list(own.iterdir()) == [], "a script that is submitted by hand has its output elsewhere"
    run_script(script, SLURM_JOB_NAME="fft-k1", SLURM_JOB_ID="77")
    assert [(link.name, link.read_text()) for link in own.iterdir()] == [("slurm-77.out", "said")]
    (own / "slurm-78.out").write_text("of another cluster")
    run_script(script, SLURM_JOB_NAME="fft-k1", SLURM_JOB_ID="78")
    assert not (own / "slurm-78.out").is_symlink(), "ids start again on another cluster, and files are the user's"
    assert (own / "slurm-78.out").read_text() == "of another cluster"
    array = batch_script(replace(ARRAY, spec=linked.spec, link="3f2a91"), None, FOLDER, None)
    assert '"slurm-${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.out"' in array


class Answers(LocalTransport):
    """A transport that answers as it is told to."""

    def __init__(self, answer):
        super().__init__(lambda *_, **__: answer)


def test_options_stand_on_the_command_line_and_an_attempt_is_never_requeued():
    words = sbatch_arguments(ONE, None, FOLDER)
    assert words[:5] == ["sbatch", "--parsable", "--no-requeue", "--job-name=fft-k1", "--comment=leadline:k1"]
    assert {"--output=/my jobs/50%%/runs/k1.log", "--chdir=/my jobs/50%", "--time=01:00:00"} <= set(words)
    assert "--signal=B:USR1@180" in words
    assert not any(word.startswith(("--array", "--dependency")) for word in words)


def test_an_array_has_its_own_indices_and_a_file_for_each_element():
    words = sbatch_arguments(ARRAY, None, FOLDER)
    assert {"--array=3,5%2", "--output=/my jobs/50%%/runs/b1-%a.log"} <= set(words)
    assert ARRAY.keys == ("b1-3", "b1-5")
    says = replace(ARRAY, spec=replace(SPEC, command=("env",)), measured=False)
    printed = run_script(batch_script(says, None, FOLDER, None), SLURM_ARRAY_TASK_ID="5", SLURM_JOB_NAME="fft-b1")
    assert {b"LEADLINE_KEY=b1-5", b"LEADLINE_INDEX=5"} <= set(printed.splitlines())


def test_an_array_of_different_jobs_runs_that_of_each_index():
    own = JobSpec("fft", ("sh", "-c", "echo $KIND"), ResourceSpec(walltime_s=2.5), environment={"KIND": "it's"})
    submission = replace(ARRAY, specs=(replace(SPEC, command=("false",)), own), measured=False)
    said = subprocess.run(
        ["bash", "-c", batch_script(submission, None, FOLDER, None)], env={"SLURM_ARRAY_TASK_ID": "5"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said == "it's\n"
    script = batch_script(replace(submission, measured=True), None, FOLDER, MEASURER)
    assert "limits='--walltime-s 2.5'\n" in script
    assert script.count('.json $limits --site-walltime-s 3600 -- "$@"\n') == 1


@pytest.mark.parametrize("launches", [False, True])
def test_an_unmeasured_command_runs_once_and_a_second_start_ends_as_the_first(tmp_path, launches):
    rules = SubmitRules(launcher="env")
    asked = replace(SPEC.resources, tasks_per_node=2 if launches else 1)
    spec = replace(SPEC, command=("sh", "-c", "echo ran; exit 3"), setup=("set -e",), resources=asked)
    (tmp_path / "runs").mkdir()
    script = batch_script(replace(ONE, spec=spec, measured=False), Partition("p", NodeType("n"), rules=rules),
                          PurePosixPath(tmp_path), None)  # fmt: skip
    answers = [subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False) for _ in range(2)]
    assert [(one.returncode, one.stdout) for one in answers] == [(3, "ran\n"), (3, "")]


@pytest.mark.parametrize("warning", ["USR1", "SIGUSR1"])
def test_a_shell_passes_its_warning_to_a_command_without_a_launcher(warning):
    warned = replace(ONE, checkpoint_signal=warning, measured=False)
    assert re.findall(r"kill -([A-Z]\w+) ", batch_script(warned, None, FOLDER, None)) == ["TERM", "USR1"]
    spread = replace(warned, spec=replace(SPEC, resources=replace(SPEC.resources, tasks_per_node=2)))
    assert "kill" not in batch_script(spread, None, FOLDER, None)


def test_a_copy_is_held_before_anything_of_its_own_runs(tmp_path):
    spec = replace(SPEC, setup=("echo own >&2",), command=("echo", "begun"))
    held = replace(ONE, spec=spec, held=True)
    script = batch_script(held, None, FOLDER, MEASURER)
    assert script.index("wrapper.gate") < script.index("echo own")
    answer = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (125, "")
    assert "own" not in answer.stderr.split()
    assert "a copy of a job cannot be held, and does not begin" in answer.stderr
    with pytest.raises(RequestRefused, match="it is not installed there"):
        batch_script(held, None, FOLDER, None)


def test_dependencies_end_what_can_never_start():
    words = sbatch_arguments(replace(ONE, after=("7", "8_1"), after_kind=DependencyKind.NOT_OK), None, FOLDER)
    assert {"--dependency=afternotok:7:8_1", "--kill-on-invalid-dep=yes"} <= set(words)


@pytest.mark.parametrize(
    ("tasks", "name", "seconds", "option"),
    [(1, "USR1", 120.0, "--signal=B:USR1@120"), (1, "SIGTERM", 0.2, "--signal=B:TERM@1"),
     (2, "USR2", 1e6, "--signal=USR2@65535")],
)  # fmt: skip
def test_the_warning_goes_to_the_command_or_to_all_its_tasks(tasks, name, seconds, option):
    spec = replace(SPEC, resources=replace(SPEC.resources, tasks_per_node=tasks))
    assert option in sbatch_arguments(
        replace(ONE, spec=spec, checkpoint_signal=name, checkpoint_s=seconds), None, FOLDER
    )


@pytest.mark.parametrize("name", ["usr1; rm", "B:USR1@9"])
def test_a_signal_that_is_none_is_refused(name):
    with pytest.raises(InvalidInput, match="cannot be a signal"):
        sbatch_arguments(replace(ONE, checkpoint_signal=name), None, FOLDER)


def test_the_rules_of_the_site_hold():
    partition = Partition("gpu", NodeType("n"), queue="q", rules=SubmitRules(rejects=("--cpus-per-task",), qos="high"))
    words = sbatch_arguments(ONE, partition, FOLDER)
    assert {"--partition=q", "--qos=high"} <= set(words)
    assert not any(word.startswith("--cpus-per-task") for word in words)


@pytest.mark.parametrize("changes", [{"key": "a b"}, {"key": ""}, {"key": "k" * 49}, {"indices": (1, 1)}])
def test_a_key_can_stand_in_a_name_and_an_index_is_named_once(changes):
    with pytest.raises(InvalidInput, match=r"cannot be a key|use each index once"):
        sbatch_arguments(replace(ONE, **changes), None, FOLDER)


def test_a_measured_command_is_run_by_the_wrapper_where_that_is_found_without_a_process():
    script = batch_script(replace(ONE, spec=replace(SPEC, watched=True)), None, FOLDER, MEASURER)
    assert "if [ -x '/opt/it'\"'\"'s/python' ] && [ -r '/opt/it'\"'\"'s/wrapper.py' ]; then\n" in script
    assert (
        '--once --since-s "$SECONDS" --result \'/my jobs/50%/runs\'/"$LEADLINE_KEY".json '
        "--probe-hook --site-walltime-s 3600 -- true"
    ) in script
    assert "; exec true) & child=$!\n" in script
    assert "wrapper" not in batch_script(replace(ONE, measured=False), None, FOLDER, MEASURER)


@settings(max_examples=100)
@given(words=st.lists(TEXTS, max_size=4), value=TEXTS)
def test_the_script_passes_arguments_and_variables_unchanged(words, value):
    spec = replace(SPEC, command=("printf", "%s\\0", "", *words), environment={"A": value}, setup=("export B=set",))
    assert [b"", *(os.fsencode(word) for word in words), b""] == shell(spec)
    shown = shell(replace(spec, command=("env", "-0")))
    assert {b"A=" + value.encode(), b"B=set", b"LEADLINE_KEY=k1", b"OMP_NUM_THREADS=2"} <= set(shown)


@pytest.mark.parametrize(
    "changes", [{"command": ()}, {"command": ("a\0b",)}, {"environment": {"a b": "1"}}, {"environment": {"A": "\0"}}]
)
def test_values_that_cannot_stand_in_a_script_are_refused(changes):
    with pytest.raises(InvalidInput):
        batch_script(replace(ONE, spec=replace(SPEC, **changes)), None, FOLDER, None)


FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("message", "error"),
    [("sbatch: error: invalid partition specified: standby\n" + FAILED + "Invalid partition name specified",
      RequestRefused),
     (FAILED + "Unable to contact slurm controller (connect failure)", SchedulerUnreachable),
     (FAILED + "Unable to contact slurm controller (receive failure)", SubmissionUncertain),
     (FAILED + "Socket timed out on send/recv operation", SubmissionUncertain),
     (FAILED + "Zero Bytes were transmitted or received", SubmissionUncertain),
     ("sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + FAILED + "Job violates accounting/QOS policy (job submit limit, "
      "user's size and/or time limits)", SchedulerBusy),
     (FAILED + "Resource temporarily unavailable", SchedulerBusy),
     ("sbatch: error: If munged is up, restart with --num-threads=10\nsbatch: error: Munge encode failed: Failed to "
      'access "/run/munge/munge.socket.2"\n' + FAILED + "Protocol authentication error", SubmissionUncertain),
     ("sbatch: error: Munge decode failed: Expired credential\nsbatch: auth/munge: _print_cred: ENCODED: now\nsbatch: "
      "error: slurm_receive_msg: auth_g_verify: RESPONSE_SUBMIT_BATCH_JOB has authentication error: Unspecified error\n"
      + FAILED + "Protocol authentication error", SubmissionUncertain)],
)  # fmt: skip
def test_failures_of_sbatch_raise_the_matching_error(message, error):
    means(CompletedProcess(1, "", message), error)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (CompletedProcess(-15, "", "", timed_out=True), SubmissionUncertain),
        (CompletedProcess(-9, "", ""), SubmissionUncertain),
        (CompletedProcess(0, "", ""), SubmissionUncertain),
        (CompletedProcess(137, "", "Killed"), SubmissionUncertain),
        (CompletedProcess(255, "", ""), SubmissionUncertain),
        (CompletedProcess(255, "", "mux_client: Connection refused"), SubmissionUncertain),
        (CompletedProcess(127, "", "sh: 1: sbatch: not found"), SchedulerUnreachable),
    ],
)
def test_missing_answers_of_sbatch_raise_the_matching_error(answer, error):
    means(answer, error)


@pytest.mark.parametrize("code", [-9, 137, 255])
def test_a_question_whose_command_was_killed_has_no_answer(code):
    for ask in (
        SlurmCommands(Answers(CompletedProcess(code, "", ""))).ask,
        SlurmCommands(Answers(CompletedProcess(code, "", ""))).listed,
    ):
        with pytest.raises(SchedulerUnreachable):
            ask(["squeue"])


def means(answer, error):
    with pytest.raises(SchedulerUnreachable if issubclass(error, SchedulerUnreachable) else RequestRefused) as caught:
        SlurmCommands(Answers(answer)).submit(["sbatch"], "")
    assert error is type(caught.value)
    assert "\n" not in str(caught.value)


def test_a_connection_that_breaks_while_sbatch_runs_leaves_it_unsure():
    def break_off(*_, **__):
        raise ConnectionLost("the connection broke")

    with pytest.raises(SubmissionUncertain):
        SlurmCommands(LocalTransport(break_off)).submit(["sbatch"], "")


def test_warnings_of_sbatch_are_not_taken_for_an_id():
    assert (
        SlurmCommands(Answers(CompletedProcess(0, "77;cluster\n", "sbatch: note 12\n"))).submit(["sbatch"], "")
        == "cluster:77"
    )
