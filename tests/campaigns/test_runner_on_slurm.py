"""A campaign on a real Slurm: killed, stopped and resumed, with every run once."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from leadline.app.campaigns.runs import (
    CampaignLimits,
    campaign_status,
    find_campaign_folder,
    run_campaign,
    stop_campaign,
)
from leadline.campaigns import runner
from leadline.campaigns.journal import CampaignJournal
from leadline.campaigns.place import INTERVALS
from leadline.core.campaigns import Budget, BudgetUnit, Campaign, Configuration, Parameter, ParameterKind, PlannedRun
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.estimate import Interval
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.runs import Scale
from leadline.history.sqlite import SqliteHistory

APPENDS = "import sys, time; time.sleep(float(sys.argv[2])); open('ran', 'a').write(sys.argv[1] + ' ')"
DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_runner_on_slurm as t
t.go(Path(sys.argv[1]), float(sys.argv[3]))
"""


def a_campaign(folder, **changes):
    command = (sys.executable, "-c", APPENDS, "{number}", "{pause}")
    parameters = (Parameter("number", ParameterKind.INTEGER), Parameter("pause", ParameterKind.REAL))
    return replace(Campaign("test", command, parameters, workdir=str(folder), walltime_s=60.0), **changes)


def planned(count, pause, forecast_s=None, *, cores=1, first=0):
    asked = ResourceSpec(cores_per_task=cores, memory_bytes_per_node=200 << 20)
    return tuple(
        PlannedRun("test", Configuration({"number": number, "pause": pause}, asked), Scale.SCALED_DOWN,
                   forecast_s=forecast_s and Interval(forecast_s, forecast_s, forecast_s))
        for number in range(first, first + count)
    )  # fmt: skip


def go(folder, pause, **changes):
    runs = planned(6, pause, 2.0 if changes else None)
    return execute(a_campaign(folder, **changes), folder, runs)


def execute(campaign, folder, runs, **options):
    runner.INTERVALS = replace(INTERVALS, first=0.3, last=1.0, grace=3.0)
    (folder / "test.toml").touch()
    options = {"on": "slurm:short", **options}
    return run_campaign(campaign, folder / "test.toml", runs, folder=folder / "campaign", **options)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path, slurm):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))


def driven(tmp_path, pause):
    words = [sys.executable, "-c", DRIVER, str(tmp_path), str(Path(__file__).parent), str(pause)]
    return subprocess.Popen(words)


def until(condition, seconds=40):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def runs(tmp_path):
    return list((tmp_path / "campaign" / "runs").glob("*.log"))


def arrays(tmp_path):
    """Return the attempts of each array, in the order of submission."""
    by_key = {}
    with CampaignJournal(tmp_path / "campaign" / "plane.sqlite") as journal:
        for job in reversed(journal.newest_jobs()):
            for attempt in job.attempts:
                by_key.setdefault(attempt.batch, []).append(attempt)
    return by_key


def test_a_killed_campaign_resumes_with_every_run_once(tmp_path):
    with driven(tmp_path, 1.0) as process:
        until(lambda: len(runs(tmp_path)) >= 2)
        process.kill()
    report = go(tmp_path, 1.0)
    assert (report.tally.completed, report.tally.failed) == (6, 0)
    assert "".join(sorted((tmp_path / "ran").read_text().split())) == "012345"
    assert [run.attempt for run in campaign_status(tmp_path / "campaign").runs] == [1] * 6
    kept = [*SqliteHistory(tmp_path / "data" / "history.sqlite").runs()]
    assert len(kept) == 6
    assert {("slurm", "short")} == {(run.job.system, run.job.partition) for run in kept}


def test_a_campaign_is_stopped_with_a_runner_and_without_one(tmp_path):
    with driven(tmp_path, 60.0) as process:
        until(lambda: runs(tmp_path))
        assert f"process {process.pid} on" in stop_campaign(tmp_path / "campaign")
        assert process.wait(30) == 0
    assert {run.state for run in campaign_status(tmp_path / "campaign").runs} == {JobState.PENDING}
    before = len(runs(tmp_path))
    with driven(tmp_path, 60.0) as process:
        until(lambda: len(runs(tmp_path)) > before)
        process.kill()
    assert "ended 6 of its runs" in stop_campaign(tmp_path / "campaign")
    listed = subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True)
    assert "".join(line for line in listed.stdout.splitlines() if " CG " not in line) == ""


def test_submissions_stay_within_the_budget(tmp_path):
    report = go(tmp_path, 0.0, budget=Budget(4.5, BudgetUnit.SECONDS))
    first = campaign_status(tmp_path / "campaign").runs[0]
    assert JobState.COMPLETED is first.state
    assert report.tally.spent < 4.5
    first_array = next(iter(arrays(tmp_path).values()))
    assert [attempt.key[-2:] for attempt in first_array] == ["-0", "-1"]


def test_each_request_is_one_array_with_its_own_commands_and_threads(tmp_path):
    code = (
        "import os, sys; open(f'threads{sys.argv[1]}', 'w').write(os.environ['OMP_NUM_THREADS'] + os.environ['KIND'])"
    )
    command = (sys.executable, "-c", code, "{number}", "{pause}")
    campaign = a_campaign(tmp_path, command=command, environment={"KIND": "k{number}"})
    report = execute(campaign, tmp_path, (*planned(2, 0.0), *planned(2, 0.0, cores=2, first=2)))
    assert report.tally.completed == 4
    assert [(tmp_path / f"threads{number}").read_text() for number in range(4)] == ["1k0", "1k1", "2k2", "2k3"]
    assert [len(elements) for elements in arrays(tmp_path).values()] == [2, 2]
    kept = [*SqliteHistory(tmp_path / "data" / "history.sqlite").runs()]
    assert all(run.measured["elapsed_s"].value > 0 for run in kept)


def test_failures_and_limits_give_the_matching_state(tmp_path):
    code = (
        "import os, sys, time; n = sys.argv[1]\n"
        "if n == '0': sys.exit('no data')\n"
        "if n == '1': time.sleep(60)\n"
        "if n == '2': os.kill(os.getppid(), 9)\n"
        "if n == '3': block = bytearray(b'x') * (300 << 20); time.sleep(60)"
    )
    campaign = a_campaign(tmp_path, command=(sys.executable, "-c", code, "{number}", "{pause}"), walltime_s=5.0)
    report = execute(campaign, tmp_path, planned(5, 0.0))
    runs = campaign_status(tmp_path / "campaign").runs
    expected = [JobState.FAILED, JobState.TIMEOUT, JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.COMPLETED]
    assert [run.state for run in runs] == expected
    assert any('exit code 1, having written "no data"' in str(cause) for cause in report.causes)


def test_the_number_of_running_elements_is_limited(tmp_path):
    code = "import sys, time; open('log', 'a').write('(' ); time.sleep(0.3); open('log', 'a').write(')')"
    campaign = a_campaign(tmp_path, command=(sys.executable, "-c", code, "{number}", "{pause}"))
    execute(campaign, tmp_path, planned(3, 0.0), limits=CampaignLimits(slots=1))
    assert (tmp_path / "log").read_text() == "()()()"


def test_a_refusal_of_slurm_is_reported_and_can_be_retried(tmp_path):
    with pytest.raises(LeadlineError, match=r"slurm:nowhere refused it: .*[Ii]nvalid partition"):
        execute(a_campaign(tmp_path), tmp_path, planned(2, 0.0), on="slurm:nowhere")
    assert {run.state for run in campaign_status(tmp_path / "campaign").runs} == {JobState.PENDING}
    assert execute(a_campaign(tmp_path), tmp_path, planned(2, 0.0)).tally.completed == 2


def test_an_impossible_place_is_refused_before_any_write(tmp_path, monkeypatch):
    file = tmp_path / "test.toml"
    file.touch()
    with pytest.raises(UnknownName, match="unknown system 'Nowhere'"):
        run_campaign(a_campaign(tmp_path), file, planned(1, 0.0), on="Nowhere:gpu")
    with pytest.raises(InvalidInput, match="--cores is for this machine"):
        run_campaign(a_campaign(tmp_path), file, planned(1, 0.0), on="slurm", limits=CampaignLimits(cores=2))
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(InvalidInput, match="this machine has no sbatch"):
        run_campaign(a_campaign(tmp_path), file, planned(1, 0.0), on="slurm:short")
    assert not (tmp_path / "data").exists()
    with pytest.raises(UnknownName):
        find_campaign_folder("test", None)
