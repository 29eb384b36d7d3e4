"""The process around a command line: its streams may close and its user may interrupt, and no traceback is shown."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

LEADLINE = [sys.executable, "-m", "leadline"]
HEEDING = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
"""Starts a command that heeds interrupts, even where the tests themselves run in the background of a shell."""


@pytest.fixture
def environment(tmp_path):
    return {
        **os.environ, "LEADLINE_DATA_DIR": str(tmp_path / "data"), "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip


@pytest.mark.parametrize("words", [["devices", "list"], ["devices", "list", "--json"], ["systems", "show", "Pitzer"]])
def test_a_reader_who_has_seen_enough_ends_the_command_quietly(words, environment):
    command = " ".join([*LEADLINE, *words])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"], env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")


def test_a_reader_who_was_gone_before_the_first_line_ends_it_quietly_too(environment):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*LEADLINE, "devices", "list"], env=environment, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("redirect", [">&-", "2>&-"])
def test_a_stream_that_is_closed_from_the_start_does_no_harm(redirect, environment):
    command = " ".join([*LEADLINE, "devices", "list", redirect])
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["--help"], ["devices", "list"], ["devices", "list", "--json"]])
def test_a_full_disk_is_a_failure_that_is_named(words, environment):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*LEADLINE, *words], env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"leadline: cannot write the output: No space left on device\n"


def test_an_internal_error_is_one_sentence_and_a_traceback_on_request(environment):
    program = (
        "import sys; from leadline.interfaces.cli import main\n"
        "def broken(words): raise KeyError('missing')\n"
        "main.main = broken\nmain.run()"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "leadline: internal error (KeyError: 'missing'); set LEADLINE_DEBUG=1" in done.stderr
    assert done.stderr.count("\n") == 1
    shown = subprocess.run(
        [sys.executable, "-c", program], env={**environment, "LEADLINE_DEBUG": "1"}, capture_output=True, check=False
    )
    assert b"Traceback" in shown.stderr


def interrupted(words, environment, *, once):
    """Start a command, interrupt it when ``once()`` holds, and return how it ended and what it said on stderr."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDING, *LEADLINE, *words], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 200
    while not once() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def _words(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_an_interrupt_while_a_script_is_traced_ends_everything_it_started(environment, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "slow.py"
    script.write_text("import time\nwhile time.process_time() < 100:\n    pass\n")
    workers = []

    def started():
        """The script runs, which never rests, after the processes that confine it were started."""
        found = [process for process in psutil.process_iter() if str(tmp_path) in " ".join(_words(process)[2:])]
        workers[:] = [process for process in found if "bootstrap.py" in " ".join(_words(process))]
        return any(worker.cpu_times().user > 4.0 for worker in workers)

    code, said = interrupted(["estimate", "--", sys.executable, str(script)], environment, once=started)
    assert (code, said.splitlines()[-1]) == (130, "leadline estimate: interrupted")
    until = time.monotonic() + 10
    while any(worker.is_running() for worker in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [worker for worker in workers if worker.is_running()]
    assert list(tmp_path.glob("leadline-trace-*")) == []
    assert not (tmp_path / "data").exists()


def test_an_interrupt_while_a_job_runs_reaches_the_job_and_is_remembered(environment, tmp_path):
    begun = tmp_path / "begun"
    words = ["submit", "-y", "--", "bash", "-c", f"touch {begun}; sleep 100"]
    code, said = interrupted(words, environment, once=begun.exists)
    assert code == 5
    assert "CANCELLED" in said
    assert "Traceback" not in said
    shown = subprocess.run([*LEADLINE, "history", "list"], env=environment, capture_output=True, text=True, check=False)
    assert "CANCELLED" in shown.stdout


INTERRUPTED_LATER = (
    "import atexit, runpy, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))\n"
    "signal.setitimer(signal.ITIMER_REAL, float(sys.argv.pop(1)))\n"
    "atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)\n"
    "runpy.run_module('leadline', run_name='__main__', alter_sys=True)"
)
"""Interrupts Leadline so many seconds after Python itself has started, unless it has ended: an interrupt before the one
and after the other is Python's to tell, and without its handler an alarm ends a process that is being torn down."""


@pytest.mark.parametrize("delay_s", [0.01, 0.03, 0.08, 0.2, 0.4])
def test_an_interrupt_at_any_moment_of_the_start_is_one_sentence(delay_s, environment):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_LATER, str(delay_s), "systems", "validate"], env=environment,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode in (0, 130, -signal.SIGINT), done.stderr
    assert done.returncode != 130 or done.stderr.endswith("interrupted\n")


WRAPPED = """
from leadline.interfaces.cli import main

class Field:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

main.main = lambda _: type("Owner", (), {"field": Field()})
main.run()
"""


def test_an_interrupt_that_python_wraps_is_an_interrupt(environment):
    done = subprocess.run([sys.executable, "-c", WRAPPED], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "leadline: interrupted\n")
