"""``leadline watch``, ``cancel`` and ``plane``: over the real scheduler of this machine."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from leadline.app.jobs.journal import find_jobs, plane_dir
from leadline.core.jobs import JobState
from leadline.files.lock import file_lock
from leadline.interfaces.cli.main import main

pytestmark = pytest.mark.usefixtures("measures")
WORK = """
import time
from leadline.progress import report
for at in range({n}):
    time.sleep(0.1)
    report(step=at + 1, total_steps={n})
"""


def submit(*command, words=()):
    assert main(["submit", "--on", "local", "--detach", "-y", *words, "--", *command]) == 0
    return find_jobs()[0] if find_jobs() else find_jobs(all_jobs=True)[0]


def started(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "leadline", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until(holds, timeout_s=30.0):
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_job_is_submitted_watched_and_added_to_the_history(capsys):
    job = submit(sys.executable, "-c", WORK.format(n=10), words=["--name", "steps", "--time", "5m"])
    capsys.readouterr()
    assert main(["watch"]) == 0
    printed = capsys.readouterr()
    assert f"{job.key} steps RUNNING at local" in printed.out
    assert f"{job.key} steps COMPLETED at local" in printed.out
    ended = find_jobs([job.key])[0]
    assert (ended.state, len(ended.attempts)) == (JobState.COMPLETED, 1)
    assert main(["history", "show", ended.attempts[0].key, "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert (run["job"]["name"], run["state"]) == ("steps", "COMPLETED")
    main(["explain", "steps"])
    assert "memory" in capsys.readouterr().out.partition("Attempts")[2]


def test_the_share_done_is_shown_in_lines_and_on_a_terminal_as_a_bar(capsys):
    job = submit(sys.executable, "-c", WORK.format(n=3000))
    with started("watch") as view:
        until(lambda: re.search(r"RUNNING at local, \d+ %, \d+ of 3000 steps", view.stdout.readline()))
        view.terminate()
    terminal, end = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "leadline", "watch"], stdin=end, stdout=end, stderr=end) as view:
        os.close(end)
        shown = b""
        while not re.search(rb"\[#*\.+\] \xc2\xb7 \d+ of 3000 steps", shown):
            shown += os.read(terminal, 1 << 16)
        view.terminate()
        with suppress(OSError):  # the end of a terminal; a view that cannot write does not end
            while os.read(terminal, 1 << 16):
                pass
    os.close(terminal)
    assert main(["cancel", job.key, "-y"]) == 0


def test_a_job_that_fails_gives_five_and_its_story_ends_with_its_log(capsys):
    job = submit(sys.executable, "-c", "import sys; print('no such grid'); sys.exit('it broke')")
    capsys.readouterr()
    assert main(["watch", job.key]) == 5
    assert f"job {job.key} ended FAILED" in capsys.readouterr().err
    assert main(["explain", job.key]) == 0
    story = capsys.readouterr().out
    assert "exit code 1" in story
    assert story.rstrip().endswith("it broke")
    assert "no such grid" in story.partition("End of the output of attempt 1")[2]
    main(["explain", job.key, "--json"])
    assert "it broke" in json.loads(capsys.readouterr().out)["log"]


def test_each_change_is_one_document_on_a_line(capsys):
    submit("true")
    capsys.readouterr()
    code = main(["watch", "--json"])
    seen = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert all(one["schema"] in ("leadline.job/1", "leadline.jobs/1") for one in seen)


def test_cancel_ends_a_running_job_without_a_running_plane(capsys):
    job = submit("sleep", "300")
    assert main(["cancel", job.key]) == 2
    assert "add -y" in capsys.readouterr().err
    assert main(["cancel", job.key, "-y"]) == 0
    assert f"job {job.key} ended: CANCELLED\n" in capsys.readouterr().err
    ended = find_jobs([job.key])[0]
    assert (ended.state, ended.attempts[0].state) == (JobState.CANCELLED, JobState.CANCELLED)
    assert main(["cancel", job.key, "-y"]) == 0
    assert "nothing to cancel" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["a", "--all"]])
def test_cancel_needs_names_or_all_but_not_both(words, capsys):
    assert main(["cancel", *words]) == 2
    assert "name the jobs to cancel, or use --all" in capsys.readouterr().err


def test_only_one_process_runs_the_plane_and_sigterm_ends_it(capsys):
    job = submit("sleep", "300")
    plane = started("plane")
    until(lambda: main(["plane", "status"]) == 0 and f"process {plane.pid} on" in capsys.readouterr().out)
    assert main(["plane"]) == 1
    assert f"the plane is already running (process {plane.pid} on" in capsys.readouterr().err
    assert main(["plane", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == {"RUNNING": 1, "PENDING": 0}
    assert main(["cancel", job.key, "-y"]) == 0  # it is the other process that carries it out
    plane.send_signal(signal.SIGTERM)
    _, said = plane.communicate(timeout=30)
    assert plane.returncode == 0
    assert "the plane ended; no jobs active" in said
    main(["plane", "status"])
    assert "none" in capsys.readouterr().out


def test_the_plane_ends_by_itself_when_nothing_is_left(capsys):
    submit("true")
    assert main(["plane", "--until-idle"]) == 0
    assert find_jobs() == ()
    assert main(["plane", "--once"]) == 0
    assert main(["plane", "stat"]) == 2
    assert "use leadline plane or leadline plane status" in capsys.readouterr().err


def test_interrupting_the_view_leaves_the_job_running(capsys):
    job = submit("sleep", "300")
    view = started("watch")
    until(lambda: (plane_dir() / "lock").read_text() != "")
    until(lambda: "RUNNING" in view.stdout.readline())
    view.send_signal(signal.SIGINT)
    _, said = view.communicate(timeout=30)
    assert view.returncode == 130
    assert "the job continues, but the plane is not running" in said
    assert JobState.RUNNING is find_jobs([job.key])[0].current_state
    main(["cancel", "--all", "-y"])


def test_once_exits_even_if_another_process_runs_the_plane(capsys):
    submit("sleep", "300")
    capsys.readouterr()
    with file_lock(plane_dir() / "lock") as mine:
        assert mine
        assert main(["watch", "--once"]) == 0
    assert "RUNNING" in capsys.readouterr().out
    main(["cancel", "--all", "-y"])


def test_without_active_jobs_there_is_nothing_to_watch(capsys):
    assert main(["watch"]) == 0
    assert "no active jobs" in capsys.readouterr().err


def test_an_array_and_its_dependent_job_run_in_order(tmp_path, capsys):
    code = f"import os; open({str(tmp_path)!r} + '/' + os.environ['SLURM_ARRAY_TASK_ID'], 'w')"
    submit(sys.executable, "-c", code, words=["--array", "1,5-7:2", "--name", "sweep"])
    group = next(job.group for job in find_jobs(["sweep"]))
    submit("ls", str(tmp_path / "5"), words=["--after", group[:8], "--name", "then"])
    assert main(["watch", "sweep", "then"]) == 0
    assert {"1", "5", "7"} <= {one.name for one in tmp_path.iterdir()}
    assert main(["explain", "then"]) == 0
    assert "after" in capsys.readouterr().out
