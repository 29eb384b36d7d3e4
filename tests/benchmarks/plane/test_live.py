"""The bench of running jobs: what is recorded of a run, and what is told of it without having seen its script."""

import os
import sys

import pytest

from benchmarks.plane.live import SHARES, LiveForecast, before, forecast_rows, live_forecasts
from benchmarks.plane.live_calibration import calibrate_live
from benchmarks.plane.live_runs import KEPT, PACKED, LiveRun, LiveRuns, pack, record, unpack
from benchmarks.probe import ProbeJob, script_file
from leadline.core.errors import LeadlineError
from leadline.core.estimate import Interval
from leadline.training.shipped_files import shipped_live_table


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.fixture(scope="module")
def runs():
    return unpack().runs


def test_a_run_is_recorded_with_its_progress_and_memory(tmp_path):
    script = tmp_path / "even.py"
    script.write_text("import time\nfor epoch in range(40):\n    for i in range(10): time.sleep(0.01)\n")
    found = record("even", ProbeJob("even", (str(script),)))
    assert found.elapsed_s > 4
    assert found.peak_memory_bytes > 1e6
    assert 1 < len(found.polls) <= len(KEPT)
    assert {10} == {poll.progress.levels[-1].length for poll in found.polls if poll.progress and poll.progress.levels}
    path = tmp_path / "runs.json.xz"
    pack(LiveRuns((found,), "here"), path)
    assert LiveRuns((found,), "here") == unpack(path)


def test_a_script_that_fails_is_no_run(tmp_path):
    script = tmp_path / "bad.py"
    script.write_text("raise SystemExit('no data')\n")
    with pytest.raises(LeadlineError, match="no data"):
        record("bad", ProbeJob("bad", (str(script),)))


def test_the_recorded_runs_are_many_of_many_scripts_and_every_script_is_there(runs):
    assert len(runs) >= 30
    assert len({one.family for one in runs}) >= 6
    assert all(script_file(run.words[0]).is_file() for run in runs)
    assert PACKED.stat().st_size < 400_000


def test_a_script_is_told_of_by_tables_that_have_not_seen_it(runs, monkeypatch):
    seen = []

    def calibrated(polls):
        seen.append({poll.run.split()[0] for poll in polls})
        return calibrate_live(polls)

    monkeypatch.setattr("benchmarks.plane.live.calibrate_live", calibrated)
    told = live_forecasts(runs)
    scripts = {one.words[0] for one in runs}
    assert len(scripts) == len(seen)
    assert sorted(map(sorted, seen)) == sorted(sorted(scripts - {one}) for one in scripts)
    assert all(one.predicted.low <= one.predicted.point <= one.predicted.high for one in told)


def test_the_estimate_from_before_does_not_know_the_run(runs):
    run = next(one for one in runs if before(one, runs) is not None)
    slower = LiveRun(run.family, run.words, 10 * run.elapsed_s, run.peak_memory_bytes, run.polls, run.memory)
    assert before(run, runs) == before(slower, tuple(slower if one is run else one for one in runs))


def test_rows_count_ranges_that_hold_and_show_the_estimate_from_before_beside_them():
    told = [
        LiveForecast("a", f"{number}", share, source, Interval(100.0, 90.0, 110.0 if number % 4 else 95.0), 100.0, 1.0)
        for number in range(20) for share in SHARES for source in ("both", "before", "memory")
    ]  # fmt: skip
    found = {one.name: one for one in forecast_rows(told, 1)}
    held = found["finish time at 50%, within the 90 % range"]
    assert (held.value, held.met, held.baseline, held.n) == (0.75, False, 0.75, 20)
    assert found["finish time at 50%, error"].value == 0
    assert pytest.approx(found["finish time at 50%, width of the range"].value) == 20
    assert found["ranges no wider than at the share before"].value == 1.0


def test_the_shipped_table_is_the_one_that_the_recorded_runs_make(runs):
    from benchmarks.plane.live import polled

    assert shipped_live_table() == calibrate_live([poll for one in runs for poll in polled(one, runs)])
