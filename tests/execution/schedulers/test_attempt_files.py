"""What attempts leave: a command that nobody measures runs once, and how it ended is read whole or not at all."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import PurePosixPath

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.execution.clock import epoch_s
from leadline.execution.schedulers.attempt_files import SiteScheduler, read_end, run_once_script
from leadline.execution.transport.port import LocalTransport
from leadline.execution.wrapper.outcome import read_outcome


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "it's one"
    (made / "runs").mkdir(parents=True)
    return made


def script(folder, *words, **options):
    lines = ["export LEADLINE_KEY=k1", *run_once_script(shlex.join(words), PurePosixPath(folder), **options), ""]
    return "\n".join(lines)


def bash(text):
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@contextmanager
def started(folder, handles, **options):
    """Run a script until its command, which sleeps, has set its signal handlers."""
    own = f"import signal, sys, time\n{handles}\nprint('on', flush=True)\nwhile True: time.sleep(1)"
    (folder / "job.sh").write_text("set -eu\n" + script(folder, sys.executable, "-c", own, **options))
    with subprocess.Popen(
        # The tests may run with SIGINT ignored, which a shell cannot undo.
        ["env", "--default-signal=INT", "bash", str(folder / "job.sh")],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        assert job.stdout.readline() == "on\n"
        try:
            yield job
        finally:
            job.kill()


def left(folder):
    return SiteScheduler("site", PurePosixPath(folder), LocalTransport()).reports(["k1"])


def test_a_second_start_runs_nothing_and_ends_as_the_first(folder):
    text = script(folder, "sh", "-c", "echo ran; exit 3")
    assert [bash(text), bash(text)] == [(3, "ran\n", ""), (3, "", "")]
    end = left(folder)["k1"]
    assert (end.state, end.exit_code, end.signal) == (JobState.FAILED, 3, None)


def test_a_second_start_without_a_recorded_end_reports_that_and_runs_nothing(folder):
    text = script(folder, "echo", "ran")
    assert bash(text) == (0, "ran\n", "")
    (folder / "runs" / "k1.ended").unlink()
    code, out, said = bash(text)
    assert (code, out) == (125, "")
    assert said.startswith("leadline: k1 was started before, and nothing tells how it ended")


def test_where_no_file_can_be_left_the_command_runs_all_the_same(tmp_path):
    assert bash(script(tmp_path / "nowhere", "echo", "ran"))[:2] == (0, "ran\n")


def test_setup_lines_that_end_at_the_first_failure_do_not_keep_the_end_from_being_written(folder):
    assert bash("set -eo pipefail\n" + script(folder, "sh", "-c", "exit 3"))[0] == 3
    assert left(folder)["k1"].exit_code == 3


@pytest.mark.parametrize(("code", "state"), [(7, JobState.FAILED), (0, JobState.COMPLETED)])
@pytest.mark.parametrize("forwarded", [(), ("TERM", "USR1")])
def test_a_terminated_command_can_end_in_its_own_way(folder, code, state, forwarded):
    handles = f"signal.signal(15, lambda *_: sys.exit({code}))"
    with started(folder, handles, forwarded=forwarded) as job:
        # Slurm signals only the batch shell, other schedulers all processes.
        (os.kill if forwarded else os.killpg)(job.pid, signal.SIGTERM)
        assert job.wait(10) == code
    end = left(folder)["k1"]
    assert (end.state, end.exit_code, end.signal) == (state, code, signal.SIGTERM)
    assert abs(time.time() - epoch_s(end.ended_at)) < 60
    assert epoch_s(end.started_at) <= epoch_s(end.ended_at)


def test_a_command_in_the_background_gets_the_warning_and_goes_on(folder):
    handles = "signal.signal(10, lambda *_: print('saved', signal.getsignal(2), flush=True))"
    with started(folder, handles, forwarded=("TERM", "USR1")) as job:
        assert job.stdout is not None
        os.kill(job.pid, signal.SIGUSR1)
        # Python handles an interrupt unless it was started with SIGINT ignored.
        assert job.stdout.readline().startswith("saved <built-in function default_int_handler")
        os.kill(job.pid, signal.SIGUSR2)
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait(10) == 128 + signal.SIGTERM
    assert left(folder)["k1"].signal == signal.SIGTERM


@pytest.mark.parametrize("text", ["", "0", "0 1", "x 1 2", "0 1 2 3", "0 1 2 TERM 3", "-1 1 2", "\u0663 1 2"])
def test_an_end_is_read_whole_or_not_at_all(text):
    with pytest.raises(InvalidInput, match="is not an exit code"):
        read_end(text)


@pytest.mark.parametrize("name", ["k1.ended", "k1.json"])
@pytest.mark.parametrize("text", ["", "{", "0 1"])
def test_damaged_files_are_ignored(folder, name, text):
    (folder / "runs" / name).write_text(text)
    assert left(folder) == {}


@pytest.mark.parametrize("moment", ["", "soon", "2026-01-01T00:3000000000:00"])
def test_an_outcome_with_a_time_that_is_none_is_refused(tmp_path, moment):
    path = tmp_path / "k.json"
    path.write_text(f'{{"state": "FAILED", "started_at": "{moment}", "host": "n1", "command": ["true"]}}')
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_outcome(path)


@pytest.mark.parametrize("text", ["0 1 99999999999999999", "0 1", f"{'9' * 5000} 1 2", "x y z", ""])
def test_an_end_that_is_none_is_refused(text):
    with pytest.raises(InvalidInput, match="is not an exit code, a start and an end"):
        read_end(text)
