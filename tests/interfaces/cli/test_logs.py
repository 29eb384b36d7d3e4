"""``leadline logs`` and the path of the output, over the real scheduler of this machine."""

import json
import sys
from pathlib import Path

import pytest

import leadline
from leadline.app.jobs.journal import find_jobs
from leadline.core.jobs import JobState
from leadline.core.plane import Place
from leadline.execution.schedulers.attempt_files import replace_link
from leadline.interfaces.cli.main import main

pytestmark = pytest.mark.usefixtures("measures")


def submit(*command, words=()):
    assert main(["submit", "--on", "local", "--detach", "-y", "--time", "5m", *words, "--", *command]) == 0
    return find_jobs(all_jobs=True)[0]


def printed(capsysbinary):
    captured = capsysbinary.readouterr()
    return captured.out, captured.err.decode()


def test_the_output_of_a_job_is_printed_whole_or_its_last_lines(capsysbinary):
    code = "import sys; sys.stdout.buffer.write(b'one\\n\\xfftwo\\n' + b'x' * 100_000 + b'\\nlast\\n')"
    job = submit(sys.executable, "-c", code)
    assert main(["watch", job.key]) == 0
    printed(capsysbinary)
    assert main(["logs", job.key]) == 0
    out, _ = printed(capsysbinary)
    assert out == b"one\n\xfftwo\n" + b"x" * 100_000 + b"\nlast\n"
    assert main(["logs", job.key, "-n", "1"]) == 0
    assert printed(capsysbinary)[0] == b"last\n"
    assert main(["logs", job.key, "--attempt", "2"]) == 2
    assert "has no attempt 2: it has one attempt" in printed(capsysbinary)[1]
    assert main(["logs", "nowhere"]) != 0


def test_the_path_is_in_every_answer_and_a_link_is_where_the_user_submitted(capsysbinary, tmp_path):
    folder = tmp_path / "my work"
    folder.mkdir()
    job = submit("echo", "said", words=["--workdir", str(folder)])
    answer = printed(capsysbinary)[1]
    assert main(["watch", job.key]) == 0
    printed(capsysbinary)
    assert main(["jobs", job.key, "--json"]) == 0
    path = json.loads(printed(capsysbinary)[0])["jobs"][0]["output"]
    assert Path(path).read_text() == "said\n"
    assert f"output: {path} (leadline logs {job.key})" in answer
    assert main(["explain", job.key]) == 0
    assert f"     output {path}\n".encode() in printed(capsysbinary)[0]
    link = folder / f"leadline-{job.key}.out"
    assert link.is_symlink()
    assert link.read_text() == "said\n"
    assert leadline.Job(job.key).logs() == "said"
    assert leadline.Job(job.key).status().output == path


def test_a_file_of_the_users_is_never_replaced_by_a_link(tmp_path):
    (tmp_path / "leadline-x.out").write_text("mine")
    (tmp_path / "log").write_text("output")
    replace_link(tmp_path / "leadline-x.out", tmp_path / "log")
    assert (tmp_path / "leadline-x.out").read_text() == "mine"
    replace_link(tmp_path / "gone" / "leadline-x.out", tmp_path / "log")


def test_an_array_is_followed_by_its_elements(capsysbinary):
    first = submit("sh", "-c", "echo element $SLURM_ARRAY_TASK_ID", words=["--array", "3-4"])
    assert main(["watch", first.group]) == 0
    printed(capsysbinary)
    assert main(["logs", f"{first.group}_4"]) == 0
    assert printed(capsysbinary)[0] == b"element 4\n"
    assert Path(f"leadline-{first.group}_3.out").read_text() == "element 3\n"
    assert main(["logs", first.group]) != 0
    assert "is an array of 2 jobs: choose one" in printed(capsysbinary)[1]


def test_a_job_is_followed_to_its_end(capsysbinary):
    job = submit("sh", "-c", "for at in 1 2 3 4; do echo $at; sleep 0.3; done")
    printed(capsysbinary)
    assert main(["logs", job.key, "-f"]) == 0
    assert printed(capsysbinary)[0] == b"1\n2\n3\n4\n"
    assert find_jobs([job.key])[0].state is JobState.COMPLETED


def test_a_followed_job_shows_its_attempts_one_after_the_other(capsysbinary):
    code = 'echo "attempt ${LEADLINE_RESTART_COUNT:-0}"; [ -n "$LEADLINE_RESTART_COUNT" ] || exit 75'
    job = submit("bash", "-c", code, words=["--resumes"])
    printed(capsysbinary)
    assert main(["logs", job.key, "--follow"]) == 0
    out, err = printed(capsysbinary)
    assert out == b"attempt 0\nattempt 1\n"
    assert "attempt 2 at local" in err
    assert main(["logs", job.key, "--attempt", "1"]) == 0
    assert printed(capsysbinary)[0] == b"attempt 0\n"


def test_before_a_scheduler_has_the_job_there_is_no_output(written, capsysbinary):
    written.job("b1c2d3e4f5a6")
    assert main(["logs", "b1c2d3"]) == 0
    out, err = printed(capsysbinary)
    assert out == b""
    assert "no output yet: train has not been submitted to a scheduler" in err
    job = written.job("b1c2d3e4f5a7")
    written.attempt(job, place=Place("local"))
    assert main(["logs", "b1c2d3e4f5a7"]) == 0
    assert ".log does not exist at this machine" in printed(capsysbinary)[1]
