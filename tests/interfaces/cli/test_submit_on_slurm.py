"""``leadline submit`` to a real Slurm, watched to its end, understood and taken back."""

import json
import os
import stat
import sys

import pytest

from leadline.app.jobs.journal import find_jobs
from leadline.core.jobs import JobState
from leadline.interfaces.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]


@pytest.fixture(autouse=True)
def nodes_see_it(tmp_path):
    """The cluster's user may come through to the folder of the test."""
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)


def test_a_job_runs_on_slurm_and_has_an_event_log(capsys, tmp_path):
    words = ["--on", "slurm", "--time", "5m", "--name", 'a "b"\nc', "-y", "--workdir", str(tmp_path)]
    assert main(["submit", *words, "--", sys.executable, "-c", "print('from Slurm'); open('done', 'w')"]) == 0
    printed = capsys.readouterr()
    (job,) = find_jobs(all_jobs=True)
    number = job.attempts[0].scheduler_id
    assert number.isdecimal()
    assert f"next: leadline watch {job.key}" in printed.err
    assert main(["watch", number]) == 0
    assert (tmp_path / "done").exists()
    assert (tmp_path / f"slurm-{number}.out").read_text() == "from Slurm\n"
    capsys.readouterr()
    assert main(["logs", number]) == 0
    assert capsys.readouterr().out == "from Slurm\n"
    assert main(["explain", number]) == 0
    story = capsys.readouterr().out
    assert f"accepted by the scheduler as {number}" in story
    assert "COMPLETED, exit code 0" in story
    assert main(["jobs", number, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["state"] == "COMPLETED"


def test_an_array_on_slurm_is_one_row_and_is_cancelled_whole(capsys, tmp_path):
    words = ["--on", "slurm", "--time", "5m", "--array", "1-3", "-y", "--workdir", str(tmp_path)]
    assert main(["submit", *words, "--", "sleep", "300"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert "sleep[3]" in row
    group = find_jobs()[0].group
    assert main(["cancel", group[:8], "-y"]) == 0
    assert "3 of 3 jobs ended: CANCELLED" in capsys.readouterr().err
    assert {JobState.CANCELLED} == {job.state for job in find_jobs([group])}
