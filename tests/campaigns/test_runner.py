"""A campaign's runs on this machine: each made once, kept once, whatever is killed in between."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from leadline.app.campaigns.runs import (
    CampaignLimits,
    campaign_status,
    find_campaign_folder,
    run_campaign,
    stop_campaign,
)
from leadline.campaigns.runner import StopReason, execution_order
from leadline.core.campaigns import (
    Budget,
    BudgetUnit,
    Campaign,
    Configuration,
    Design,
    Parameter,
    ParameterKind,
    PlannedRun,
)
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.estimate import Interval
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.runs import Scale
from leadline.execution.schedulers.local.queue import MARK_VARIABLE
from leadline.history.sqlite import SqliteHistory

APPENDS = "import sys, time; time.sleep(float(sys.argv[2])); open('ran', 'a').write(sys.argv[1] + '\\n')"
DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))
from drive import CAMPAIGN, PLANNED
from leadline.app.campaigns.runs import CampaignLimits, run_campaign
run_campaign(CAMPAIGN, Path(sys.argv[1]), PLANNED, limits=CampaignLimits(slots=2))
"""


def a_campaign(folder, code=APPENDS, **changes):
    number = Parameter("number", ParameterKind.INTEGER)
    command = (sys.executable, "-c", code, "{number}", "{pause}")
    pause = Parameter("pause", ParameterKind.REAL)
    return replace(Campaign("test", command, (number, pause), workdir=str(folder)), **changes)


def planned(count, *, pause=0.0, first=0, forecast_s=None, **resources):
    return tuple(
        PlannedRun(
            "test",
            Configuration({"number": number, "pause": pause}, ResourceSpec(cores_per_task=1, **resources)),
            Scale.SCALED_DOWN,
            forecast_s=forecast_s and Interval(forecast_s, forecast_s, forecast_s),
        )
        for number in range(first, first + count)
    )


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "test.toml"
    path.write_text("# as it was\n")
    return path


def history(tmp_path):
    return [*SqliteHistory(tmp_path / "data" / "history.sqlite").runs()]


def test_every_planned_run_is_made_once_in_order_and_recorded(tmp_path, file):
    runs = planned(3)
    report = run_campaign(a_campaign(tmp_path), file, runs)
    assert report.ending is StopReason.DONE
    assert (report.tally.planned, report.tally.completed, report.ended_here) == (3, 3, 3)
    assert (tmp_path / "ran").read_text() == "0\n1\n2\n"
    kept = {run.id: run for run in history(tmp_path)}
    assert set(kept) == {one.id for one in runs}
    first = kept[runs[0].id]
    assert Scale.SCALED_DOWN is first.scale
    assert first.parameters == {"number": 0, "pause": 0.0}
    assert first.tags["campaign"] == "test"
    assert first.measured["elapsed_s"].value > 0
    assert (find_campaign_folder("test", None) / "campaign.toml").read_text() == "# as it was\n"


def test_a_random_design_is_shuffled_across_scales(tmp_path, file):
    run_campaign(a_campaign(tmp_path, design=Design.RANDOM), file, planned(8))
    made = (tmp_path / "ran").read_text().split()
    assert sorted(made) == [str(number) for number in range(8)] != made
    tight = a_campaign(tmp_path, design=Design.RANDOM, budget=Budget(60, BudgetUnit.SECONDS))
    assert list(planned(8)) == execution_order(tight, planned(8))


def test_python_loops_are_timed_unless_disabled(tmp_path, file):
    (tmp_path / "loop.py").write_text("import time\ntime.sleep(0.2)\nfor _ in range(5):\n    time.sleep(0.05)\n")
    command = (sys.executable, "loop.py", "{number}", "{pause}")
    run_campaign(replace(a_campaign(tmp_path), command=command), file, planned(1))
    run_campaign(replace(a_campaign(tmp_path), name="unwatched", command=command, watch=False), file,
                 [replace(one, campaign="unwatched") for one in planned(1)])  # fmt: skip
    watched, unwatched = (run for name in ("test", "unwatched") for run in history(tmp_path) if run.job.name == name)
    assert watched.measured["unit_s"].value == pytest.approx(0.05, rel=0.5)
    assert watched.measured["startup_s"].value >= 0.2
    assert "unit_s" not in unwatched.measured


def test_a_repeated_campaign_makes_only_new_runs(tmp_path, file):
    run_campaign(a_campaign(tmp_path), file, planned(2))
    report = run_campaign(a_campaign(tmp_path), file, planned(3))
    assert report.ended_here == 1
    assert (tmp_path / "ran").read_text() == "0\n1\n2\n"


def test_max_runs_limits_the_call(tmp_path, file):
    report = run_campaign(a_campaign(tmp_path), file, planned(5), limits=CampaignLimits(slots=2), max_runs=3)
    assert StopReason.MAX_RUNS is report.ending
    assert len((tmp_path / "ran").read_text().splitlines()) == 3


def test_without_a_history_no_run_is_stored(tmp_path, file):
    run_campaign(a_campaign(tmp_path), file, planned(1), history=False)
    assert history(tmp_path) == []


def test_a_run_has_exclusive_cores_and_matching_threads(tmp_path, file):
    code = (
        "import os, sys; open(sys.argv[1], 'w').write(f\"{sorted(os.sched_getaffinity(0))} "
        "{os.environ['OMP_NUM_THREADS']} <{os.environ['CUDA_VISIBLE_DEVICES']}>\"); import time; time.sleep(1)"
    )
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        pytest.skip("two cores are needed")
    run_campaign(a_campaign(tmp_path, code), file, planned(2), limits=CampaignLimits(cores=2))
    assert {(tmp_path / name).read_text() for name in "01"} == {f"[{core}] 1 <>" for core in available[:2]}


def test_an_oversized_run_is_refused_before_any_run(tmp_path, file):
    with pytest.raises(InvalidInput, match=r"it requests 3 GPUs, but \d may be used"):
        run_campaign(a_campaign(tmp_path), file, planned(1, gpus_per_node=3), limits=CampaignLimits(gpus=0))
    with pytest.raises(InvalidInput, match="--cores is 9999, but this machine has"):
        run_campaign(a_campaign(tmp_path), file, planned(1), limits=CampaignLimits(cores=9999))
    assert not (tmp_path / "ran").exists()


def test_failed_and_timed_out_runs_are_recorded_and_setup_comes_first(tmp_path, file):
    code = (
        "import os, sys, time; number = int(sys.argv[1]); time.sleep(60 * (number == 1)); "
        "sys.exit(int(os.environ['CODE']) * (number == 2))"
    )
    campaign = a_campaign(tmp_path, code, walltime_s=1.0, setup=("export CODE=7",))
    report = run_campaign(campaign, file, planned(3))
    assert (report.tally.completed, report.tally.failed) == (1, 2)
    states = {run.parameters["number"]: (run.state, run.exit_code) for run in history(tmp_path)}
    assert states == {0: (JobState.COMPLETED, 0), 1: (JobState.TIMEOUT, None), 2: (JobState.FAILED, 7)}


def test_a_hopeless_campaign_ends_early_with_the_reason(tmp_path, file):
    code = "import sys; sys.exit(f'no data set {sys.argv[1]} here')"
    report = run_campaign(a_campaign(tmp_path, code), file, planned(9))
    assert StopReason.HOPELESS is report.ending
    assert report.ended_here == 3
    assert 'FAILED with exit code 1, having written "no data set 0 here"' in str(report.causes[0])
    assert report.causes[0].count == 3


def test_failed_runs_are_repeated_only_on_request(tmp_path, file):
    code = "import os, sys; sys.exit(not os.path.exists('mended'))"
    campaign = a_campaign(tmp_path, code)
    assert run_campaign(campaign, file, planned(2)).tally.failed == 2
    (tmp_path / "mended").touch()
    assert run_campaign(campaign, file, planned(2)).ended_here == 0
    assert run_campaign(campaign, file, planned(2), retry_failed=True).tally.completed == 2
    assert [run.state for run in history(tmp_path)] == [JobState.COMPLETED] * 2


def test_no_unaffordable_run_starts(tmp_path, file):
    budget = Budget(10.0, BudgetUnit.SECONDS)
    runs = (*planned(1), *planned(1, first=1, forecast_s=11.0), *planned(1, first=2, forecast_s=2.0))
    report = run_campaign(a_campaign(tmp_path, budget=budget), file, runs)
    assert StopReason.BUDGET is report.ending
    assert (tmp_path / "ran").read_text() == "0\n2\n"
    assert 0 < report.tally.spent < 10


def test_the_remaining_time_follows_the_pace_of_ended_runs(tmp_path, file):
    report = run_campaign(a_campaign(tmp_path), file, planned(6, forecast_s=100.0), max_runs=3)
    assert 0 < report.tally.left_s < 30
    assert report.tally.unknown == 0


def test_a_run_is_cut_off_at_the_end_of_the_budget(tmp_path, file):
    campaign = a_campaign(tmp_path, budget=Budget(1.0 / 3600, BudgetUnit.CORE_HOURS))
    report = run_campaign(campaign, file, planned(2, pause=30.0))
    assert StopReason.BUDGET is report.ending
    assert [run.state for run in history(tmp_path)] == [JobState.TIMEOUT]


def test_money_counts_cores_at_their_price(tmp_path, file):
    campaign = a_campaign(tmp_path, budget=Budget(1.0, BudgetUnit.USD), core_hour=3600.0)
    report = run_campaign(campaign, file, planned(1, pause=0.2))
    (run,) = history(tmp_path)
    assert pytest.approx(run.measured["elapsed_s"].value) == report.tally.spent == report.tally.money


def test_an_adaptive_design_proposes_runs_until_it_has_none(tmp_path, file):
    asked = []

    def propose(campaign, finished, spent):
        asked.append((len(finished), spent > 0))
        return planned(1, first=len(finished)) if len(finished) < 4 else ()

    report = run_campaign(a_campaign(tmp_path), file, planned(2), propose=propose)
    assert asked == [(2, True), (3, True), (4, True)]
    assert StopReason.DONE is report.ending
    assert report.tally.completed == 4


def test_another_command_under_the_same_name_is_refused(tmp_path, file):
    run_campaign(a_campaign(tmp_path), file, planned(1))
    with pytest.raises(LeadlineError, match="holds a campaign 'test' that runs another command"):
        run_campaign(a_campaign(tmp_path, "print()"), file, planned(1))


def test_a_runner_that_died_before_it_stored_an_outcome_runs_nothing_twice(tmp_path, file):
    run_campaign(a_campaign(tmp_path), file, planned(2))
    with sqlite3.connect(tmp_path / "data" / "campaigns" / "test" / "plane.sqlite") as journal:
        journal.execute("UPDATE job SET recorded = 0")
        journal.execute("UPDATE attempt SET document = json_set(document, '$.recorded', json('false'))")
        journal.execute("DELETE FROM outcome")
    (tmp_path / "data" / "history.sqlite").unlink()
    assert run_campaign(a_campaign(tmp_path), file, planned(2)).tally.completed == 2
    assert (tmp_path / "ran").read_text() == "0\n1\n"
    assert [run.state for run in history(tmp_path)] == [JobState.COMPLETED] * 2


# --- with a runner in a process of its own, which is killed


@pytest.fixture
def driven(tmp_path, file):
    """Start the campaign of ``planned(count, pause)`` in a process of its own."""
    started = []

    def start(count, pause):
        script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport test_runner as t\n"
        script += f"CAMPAIGN = t.a_campaign({str(tmp_path)!r})\nPLANNED = t.planned({count}, pause={pause})\n"
        (tmp_path / "drive.py").write_text(script)
        with (tmp_path / "said").open("w") as said:
            started.append(subprocess.Popen([sys.executable, "-c", DRIVER, str(file)], stderr=said))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
    for one in _marked(tmp_path):
        one.kill()


def _marked(tmp_path):
    found = []
    for process in psutil.process_iter():
        try:
            if str(tmp_path) in process.environ().get(MARK_VARIABLE, ""):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _is_wrapper(process):
    try:
        return "leadline.execution.wrapper" in process.cmdline()[:5]
    except psutil.NoSuchProcess:
        return False


def _until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_random_kills_of_runner_and_wrappers_neither_lose_nor_repeat_runs(tmp_path, driven):
    chance, folder, killed = random.Random(7), tmp_path / "data" / "campaigns" / "test", 0  # noqa: S311 - not secret
    while killed < 6:
        process, before = driven(20, 0.15), _count(tmp_path)
        _until(lambda p=process, before=before: _count(tmp_path) > before or p.poll() is not None)
        time.sleep(chance.uniform(0.0, 0.5))
        wrappers = [process for process in _marked(tmp_path) if _is_wrapper(process)]
        victims = [[], wrappers, wrappers[:1]][killed % 3]
        if process.poll() is None:
            killed += 1
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        process.kill()
        process.wait()
        assert process.returncode == -signal.SIGKILL, "the campaign is too short for the test"
    last = driven(20, 0.15)
    assert last.wait(60) == 0, (tmp_path / "said").read_text()
    status = campaign_status(folder)
    assert [run.state for run in status.runs] == [JobState.COMPLETED] * 20
    assert 20 == len(history(tmp_path)) == len({run.id for run in history(tmp_path)})
    ran = (tmp_path / "ran").read_text().split()
    assert {str(number) for number in range(20)} == set(ran)
    lost = sum(run.attempt - 1 for run in status.runs)
    assert len(ran) <= 20 + lost
    assert _marked(tmp_path) == []


def _count(tmp_path):
    return len((tmp_path / "ran").read_text()) if (tmp_path / "ran").exists() else 0


def test_a_surviving_wrapper_is_awaited_and_not_restarted(tmp_path, driven, file):
    process = driven(1, 2.0)
    _until(lambda: len(_marked(tmp_path)) > 1)  # the wrapper and its command: before, nothing was begun
    process.kill()
    process.wait()
    report = run_campaign(a_campaign(tmp_path), file, planned(1, pause=2.0))
    assert report.tally.completed == 1
    assert [run.attempt for run in campaign_status(tmp_path / "data" / "campaigns" / "test").runs] == [1]
    assert (tmp_path / "ran").read_text() == "0\n"


def test_a_second_runner_names_the_first(tmp_path, driven, file):
    process = driven(1, 20.0)
    _until(lambda: _marked(tmp_path))
    with pytest.raises(LeadlineError, match=rf"'test' is being run by process {process.pid} on .*: wait for it"):
        run_campaign(a_campaign(tmp_path), file, planned(1))


def test_a_campaign_is_stopped_from_another_process_and_resumed(tmp_path, driven, file):
    process = driven(2, 20.0)
    _until(lambda: _marked(tmp_path))
    folder = find_campaign_folder("test", None)
    assert f"process {process.pid} " in stop_campaign(folder)
    process.wait(30)
    assert _marked(tmp_path) == []
    assert [run.state for run in campaign_status(folder).runs] == [JobState.PENDING] * 2
    assert history(tmp_path) == []


def test_stop_ends_runs_that_outlived_their_runner(tmp_path, driven):
    process = driven(1, 20.0)
    _until(lambda: _marked(tmp_path))
    process.kill()
    process.wait()
    assert "ended 1 of its runs" in stop_campaign(find_campaign_folder("test", None))
    assert _marked(tmp_path) == []


def test_a_run_of_another_machine_is_only_ended_by_a_stop(tmp_path, driven, file):
    process = driven(1, 20.0)
    _until(lambda: len(_marked(tmp_path)) > 1)
    process.kill()
    process.wait()
    folder = find_campaign_folder("test", None)
    with sqlite3.connect(folder / "jobs.sqlite") as queue:
        queue.execute("UPDATE job SET host = 'elsewhere'")
    with pytest.raises(LeadlineError, match="was started on elsewhere, and its state is only known there"):
        run_campaign(a_campaign(tmp_path), file, planned(1, pause=20.0))
    assert "ended 1 of its runs" in stop_campaign(folder)
    assert [run.state for run in campaign_status(folder).runs] == [JobState.PENDING]


def test_the_first_interrupt_lets_runs_end_and_the_second_ends_them(tmp_path, driven):
    process = driven(5, 1.5)
    _until(lambda: len(_marked(tmp_path)) >= 4)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert len((tmp_path / "ran").read_text().splitlines()) == 2
    process = driven(5, 30.0)
    _until(lambda: len(_marked(tmp_path)) >= 4)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    assert _marked(tmp_path) == []


def test_a_campaign_without_runs_is_unknown():
    with pytest.raises(UnknownName, match="unknown campaign 'nothing'"):
        find_campaign_folder("nothing", None)
