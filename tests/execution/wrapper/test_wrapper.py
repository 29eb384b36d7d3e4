"""The measuring wrapper, on real processes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from leadline.core.jobs import JobState
from leadline.core.plane import FailureCause
from leadline.core.units import MIB
from leadline.execution.plane.failure_patterns import read_signs
from leadline.execution.wrapper.cgroup import memory_cgroup
from leadline.execution.wrapper.outcome import read_outcome, set_walltime, write_outcome
from leadline.execution.wrapper.supervise import interim_wait_s

WRAPPER = [sys.executable, "-P", "-m", "leadline.execution.wrapper"]
HOLD = "import sys, time; block = bytearray(int(sys.argv[1]) << 20); print('held', flush=True); time.sleep(60)"
FOUR_HOLD = """
import subprocess, sys, time
code = "import sys; block = bytearray(64 << 20); print('held', flush=True); sys.stdin.read()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
children = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(4)]
[child.stdout.readline() for child in children]
time.sleep(4)
[child.communicate() for child in children]
"""


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    result = tmp_path / "result.json"

    def run(*words, options=(), **more):
        command = [*WRAPPER, "--result", str(result), *options, "--", *words]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, **more)
        return ended, read_outcome(result)

    return run


def test_streams_arguments_and_the_exit_code_are_the_commands_own(measure):
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); print('oops', file=sys.stderr); sys.exit(7)"
    ended, outcome = measure(sys.executable, "-c", code, "--epochs", "a b", input="fed")
    assert ended.stdout == "['--epochs', 'a b'] fed\n"
    assert ended.stderr == "oops\n"
    assert ended.returncode == 7
    assert outcome.state is JobState.FAILED
    assert outcome.exit_code == 7


def test_memory_is_the_sum_over_the_tree_and_not_the_largest_process(measure):
    _, outcome = measure(sys.executable, "-c", FOUR_HOLD)
    assert outcome.state is JobState.COMPLETED
    peak = outcome.measured["host_memory_bytes"]
    assert 4 * 64 * MIB <= peak.value < 4 * 64 * MIB + 5 * 40 * MIB
    assert "PSS" in peak.method
    assert peak.interval_s > 0
    assert outcome.measured["processes"].value == 5


def test_cpu_time_includes_the_children(measure):
    burn = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    _, outcome = measure("sh", "-c", f"{shlex.join([sys.executable, '-c', burn])}; true")
    assert 0.4 <= outcome.measured["cpu_s"].value < 5


def test_a_job_over_its_walltime_times_out(measure):
    ended, outcome = measure("sleep", "60", options=["--walltime-s", "0.5"])
    assert outcome.state is JobState.TIMEOUT
    assert outcome.state.censored
    assert outcome.signal == signal.SIGTERM
    assert ended.returncode == 128 + signal.SIGTERM
    assert 0.5 <= outcome.measured["elapsed_s"].value < 30
    assert ended.stderr.startswith("leadline: TIMEOUT: longer than the walltime of 500 ms")


def test_a_job_that_ignores_the_end_is_killed_with_all_its_processes(measure):
    stubborn = "trap '' TERM; sleep 61 & echo $!; while :; do sleep 0.1; done"
    ended, outcome = measure("sh", "-c", stubborn, options=["--walltime-s", "0.3"])
    assert outcome.state is JobState.TIMEOUT
    assert outcome.signal == signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)


def test_a_job_above_its_memory_limit_is_out_of_memory(measure):
    _, outcome = measure(sys.executable, "-c", HOLD, "200", options=["--memory-bytes", str(100 * MIB)])
    assert outcome.state is JobState.OUT_OF_MEMORY
    assert outcome.measured["host_memory_bytes"].value > 100 * MIB
    assert "more than the requested 100 MiB" in outcome.reason


def test_a_program_that_does_not_exist_is_one_sentence_and_127(measure):
    ended, outcome = measure("no-such-program")
    assert ended.returncode == 127
    assert ended.stderr.count("\n") == 1
    assert "there is no such program" in ended.stderr
    assert outcome.state is JobState.FAILED


def _started(tmp_path, monkeypatch, code, *options):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    command = [*WRAPPER, "--result", str(tmp_path / "result.json"), *options, "--", sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


LISTENS = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b"saved\\n"), os._exit(0)))  # print may be at work already
print('ready', flush=True); time.sleep(60)
"""


def test_a_cancelled_job_is_reported_and_not_measured(tmp_path, monkeypatch):
    with _started(tmp_path, monkeypatch, "import time; print('ready', flush=True); time.sleep(60)") as process:
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert read_outcome(tmp_path / "result.json").state is JobState.CANCELLED


def test_a_warning_reaches_a_job_that_listens(tmp_path, monkeypatch):
    with _started(tmp_path, monkeypatch, LISTENS) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "saved\n"
    assert read_outcome(tmp_path / "result.json").state is JobState.COMPLETED


# A site may shorten a limit, as with --time-min, or extend it. Only the scheduler knows then how the job ended.
@pytest.mark.parametrize(("limit_s", "state"), [("60", "COMPLETED"), ("3600", "CANCELLED"), ("0.1", "TIMEOUT")])
def test_sigterm_is_the_warning_of_a_job_that_asked_for_it_and_listens(tmp_path, monkeypatch, limit_s, state):
    options = ["--warning", "TERM", "--warning-s", "30", "--site-walltime-s", limit_s]
    with _started(tmp_path, monkeypatch, LISTENS.replace("SIGUSR1", "SIGTERM"), *options) as process:
        process.terminate()
        assert process.stdout.readline() == "saved\n"
    outcome = read_outcome(tmp_path / "result.json")
    assert outcome.warned
    assert outcome.state is JobState(state)


def test_sigterm_cancels_a_job_that_asked_for_it_and_does_not_listen(tmp_path, monkeypatch):
    deaf = "import time; print('ready', flush=True); time.sleep(60)"
    options = ["--warning", "TERM", "--warning-s", "30", "--site-walltime-s", "3600"]
    with _started(tmp_path, monkeypatch, deaf, *options) as process:
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    outcome = read_outcome(tmp_path / "result.json")
    assert (outcome.state, outcome.warned) == (JobState.CANCELLED, False)


def test_a_second_sigterm_ends_a_job_that_went_on_after_its_warning(tmp_path, monkeypatch):
    # The handler is gone before the test reads what it writes, so the next signal finds the default action.
    keeps_on = LISTENS.replace("SIGUSR1", "SIGTERM").replace(", os._exit(0)", "")
    keeps_on = keeps_on.replace("(os.write(", "(signal.signal(15, signal.SIG_DFL), os.write(")
    options = ["--warning", "TERM", "--warning-s", "30", "--site-walltime-s", "60"]
    with _started(tmp_path, monkeypatch, keeps_on + "\ntime.sleep(60)", *options) as process:
        process.terminate()
        assert process.stdout.readline() == "saved\n"
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    outcome = read_outcome(tmp_path / "result.json")
    assert (outcome.state, outcome.warned) == (JobState.CANCELLED, True)


def test_a_warning_that_comes_before_the_handler_is_given_to_it_later(tmp_path, monkeypatch):
    late = "import os, signal, time; print('ready', flush=True); time.sleep(1)\n" + LISTENS.replace("'ready'", "'now'")
    with _started(tmp_path, monkeypatch, late) as process:
        process.send_signal(signal.SIGUSR1)
        printed = process.stdout.read()
    assert printed.endswith("saved\n")
    assert read_outcome(tmp_path / "result.json").warned


@pytest.mark.parametrize(("text", "word"), [("saved\n", "saved"), ("DONE", "done"), ("perhaps", ""), (None, "")])
def test_the_marker_of_a_command_is_in_its_outcome(measure, text, word):
    writes = "true" if text is None else f"printf %s {shlex.quote(text)} > $LEADLINE_MARKER"
    _, outcome = measure("sh", "-c", writes)
    assert outcome.marker == word


def test_a_warning_does_not_kill_a_job_that_does_not_listen(tmp_path, monkeypatch):
    deaf = "import time; print('ready', flush=True); time.sleep(1); print('done', flush=True)"
    with _started(tmp_path, monkeypatch, deaf) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "done\n"
    assert read_outcome(tmp_path / "result.json").state is JobState.COMPLETED


def test_a_term_after_the_schedulers_limit_is_a_timeout(tmp_path, monkeypatch):
    waits = "import time; print('ready', flush=True); time.sleep(60)"
    with _started(tmp_path, monkeypatch, waits, "--site-walltime-s", "0.1") as process:
        process.terminate()
    assert read_outcome(tmp_path / "result.json").state is JobState.TIMEOUT


def test_the_job_and_its_result_survive_the_death_of_the_parent(tmp_path):
    result, waits = tmp_path / "result.json", "import time; time.sleep(1)"
    wrapper = [*WRAPPER, "--result", str(result), "--", sys.executable, "-c", waits]
    starts = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=sys.stderr)\n"
        "print(p.pid, flush=True); p.wait()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", starts, *wrapper], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout.readline()
        parent.kill()
    _wait_until(result.exists)
    assert read_outcome(result).state is JobState.COMPLETED


def test_a_peak_between_two_samples_is_seen_too(measure):
    brief = "import time; time.sleep(1.5); block = bytearray(b'x') * (256 << 20); del block; time.sleep(1.5)"
    _, outcome = measure(sys.executable, "-c", brief)
    assert outcome.measured["host_memory_bytes"].value >= 256 * MIB


def test_a_job_is_not_begun_where_its_starter_died_before_it_was_noted(tmp_path):
    reading, writing = os.pipe()
    os.close(writing)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    options = ["--gate", str(reading), "--result", str(tmp_path / "result.json")]
    command = [*WRAPPER, *options, "--", "touch", str(tmp_path / "made")]
    ended = subprocess.run(command, pass_fds=(reading,), env=env, check=False)
    os.close(reading)
    assert ended.returncode == 125
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert read_outcome(tmp_path / "result.json").state is JobState.PENDING


def _copy(tmp_path, *options):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = ["--word", str(tmp_path / "a.word"), *options, "--once", "--result", str(tmp_path / "a.json")]
    return subprocess.Popen([*WRAPPER, *words, "--", "touch", str(tmp_path / "made")], env=env)


def _wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def _handles(pid, number):
    """True once a process ignores or catches a signal, so that it survives it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigIgn:", "SigCgt:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_a_copy_that_is_never_released_never_begins(tmp_path):
    with _copy(tmp_path, "--word-within-s", "0.3") as process:
        assert process.wait(30) == 125
    ended = read_outcome(tmp_path / "a.json")
    assert ended.never_released
    assert (ended.state, ended.exit_code) == (JobState.CANCELLED, 125)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_copy_begins_when_released_and_ignores_earlier_warnings(tmp_path):
    with _copy(tmp_path) as process:
        _wait_until(lambda: _handles(process.pid, signal.SIGUSR1))
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        assert process.poll() is None
        assert not (tmp_path / "made").exists()
        (tmp_path / "a.word").touch()
        assert process.wait(30) == 0
    assert (tmp_path / "made").exists()
    assert read_outcome(tmp_path / "a.json").state is JobState.COMPLETED


def test_time_before_the_command_began_counts_toward_the_limit(measure):
    options = ["--walltime-s", "100", "--since-s", "99"]
    _, outcome = measure("sleep", "60", options=options)
    assert outcome.state is JobState.TIMEOUT
    assert outcome.measured["elapsed_s"].value < 20


def test_a_warning_that_came_before_the_wrapper_is_sent_again(measure, tmp_path):
    code = "import signal, time; signal.signal(signal.SIGUSR2, lambda *_: open('saved', 'w')); time.sleep(9)"
    options = ["--site-walltime-s", "100", "--warning", "USR2", "--warning-s", "20", "--workdir", str(tmp_path)]
    measure(sys.executable, "-c", code.replace("9", "3"), options=[*options, "--since-s", "70"])
    assert not (tmp_path / "saved").exists()
    measure(sys.executable, "-c", code, options=[*options, "--since-s", "78"])
    assert (tmp_path / "saved").exists()


def test_a_warning_reaches_a_handler_below_a_shell_without_one(measure, tmp_path):
    code = "import signal, time; signal.signal(signal.SIGUSR2, lambda *_: open('saved', 'w')); time.sleep(9)"
    options = ["--walltime-s", "3", "--warning", "USR2", "--warning-s", "1", "--workdir", str(tmp_path)]
    _, outcome = measure("sh", "-c", f"{shlex.join([sys.executable, '-c', code])} & wait; true", options=options)
    assert outcome.state is JobState.TIMEOUT
    assert (tmp_path / "saved").exists()


def test_a_job_that_ignores_sigterm_is_killed_if_requested(tmp_path, monkeypatch):
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    with _started(tmp_path, monkeypatch, stubborn, "--kill-after-s", "0.5") as process:
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGKILL
    assert read_outcome(tmp_path / "result.json").state is JobState.CANCELLED


def test_a_limit_is_changed_while_the_command_runs(tmp_path, monkeypatch):
    waits = "import time; print('ready', flush=True); time.sleep(60)"
    with _started(tmp_path, monkeypatch, waits, "--controlled", "--walltime-s", "50") as process:
        set_walltime(tmp_path / "result.json", 0.1)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert read_outcome(tmp_path / "result.json").state is JobState.TIMEOUT


WITHOUT_GROUPS = """
import sys
from pathlib import Path
from leadline.execution.wrapper import cgroup
from leadline.execution.wrapper.command import main
cgroup.VERSION_1 = cgroup.VERSION_2 = Path('/nowhere')
sys.exit(main(sys.argv[1:]))
"""


def test_memory_is_watched_where_the_kernel_lets_no_group_be_made(tmp_path):
    result = tmp_path / "result.json"
    options = ["--result", str(result), "--memory-bytes", str(100 * MIB)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", WITHOUT_GROUPS, *options, "--", sys.executable, "-c", HOLD, "200"]
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False)
    outcome = read_outcome(result)
    assert outcome.state is JobState.OUT_OF_MEMORY
    assert outcome.reason.startswith("used ")
    assert "cgroup_memory_bytes" not in outcome.measured


def test_a_kill_for_memory_that_the_exit_code_hides_is_seen(measure):
    with memory_cgroup(100 * MIB) as group:
        if group.job_folder is None:
            pytest.skip("this user may make no control group")
    hides = f"{shlex.join([sys.executable, '-c', HOLD, '200'])} || true"
    _, outcome = measure("sh", "-c", hides, options=["--memory-bytes", str(100 * MIB)])
    assert outcome.state is JobState.OUT_OF_MEMORY
    # A busy machine may let it stay at the limit until it is measured, with the libraries that count elsewhere.
    killed, measured = "the kernel killed a process that would use", r"used 10\d MiB,"
    assert re.fullmatch(rf"({killed}|{measured}) more than the requested 100 MiB", outcome.reason)
    assert outcome.measured["cgroup_memory_bytes"].value <= 100 * MIB
    assert not group.job_folder.exists()


def test_of_two_submissions_of_one_attempt_only_the_first_starts(tmp_path):
    argv = [
        *WRAPPER, "--once", "--result", str(tmp_path / "a.json"), "--",
        "sh", "-c", f"echo ran >> {tmp_path / 'ran'}; exit 3",
    ]  # fmt: skip
    answers = [subprocess.run(argv, capture_output=True, text=True, check=False) for _ in range(2)]
    assert [one.returncode for one in answers] == [3, 3]
    assert answers[1].stderr == "leadline: a ran before and ended as FAILED: it is not started again\n"
    outcome = read_outcome(tmp_path / "a.json")
    write_outcome(replace(outcome, state=JobState.RUNNING), tmp_path / "a.json")
    unknown = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert unknown.returncode == 125
    assert unknown.stderr == "leadline: a was started before, and nothing tells how it ended: it is not started again\n"
    assert [one.cause for one in read_signs(unknown.stderr)] == [FailureCause.NODE]
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.parametrize(("age_s", "due_s"), [(0.0, 5.0), (20.0, 10.0), (3600.0, 30.0)])
def test_a_young_job_is_reported_on_more_often(age_s, due_s):
    assert due_s == interim_wait_s(age_s)
