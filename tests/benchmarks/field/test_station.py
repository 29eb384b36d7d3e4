"""The field station's season with real parts, and its report."""

from dataclasses import replace

import pytest

from benchmarks.field.station import QUICK, roll_out_s, run_season
from benchmarks.field.station_report import StationReport, report_lines, time_errors
from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.pipelines.journal import Batch
from tests.support.mqtt_broker import why_no_mosquitto
from tests.support.slurm_cluster import why_no_slurm


def run_of(stage, number, at, *, predicted_s, elapsed_s, work=100.0):
    interval = None if predicted_s is None else Interval(predicted_s, predicted_s / 2, predicted_s * 2)
    return Batch(
        stage, number, (), 0, 0, 1, f"2026-01-01T00:{at:02d}:00Z", "hpc", work, interval, state=JobState.COMPLETED,
        ended_at=f"2026-01-01T00:{at:02d}:30Z", elapsed_s=elapsed_s,
    )  # fmt: skip


def test_errors_count_from_the_second_retraining_on_beside_the_last_run():
    runs = {
        "retrain": [
            run_of("retrain", 1, 10, predicted_s=None, elapsed_s=10.0),
            run_of("retrain", 2, 20, predicted_s=18.0, elapsed_s=20.0, work=400.0),
        ],
        "label": [
            run_of("label", 1, 5, predicted_s=None, elapsed_s=1.0),
            run_of("label", 2, 15, predicted_s=9.0, elapsed_s=1.0),
            run_of("label", 3, 25, predicted_s=1.0, elapsed_s=1.25),
        ],
    }
    errors = time_errors(runs)
    assert errors["retrain"].refitted == pytest.approx(0.1)
    assert errors["retrain"].last == pytest.approx(0.5)
    assert errors["retrain"].frozen == pytest.approx(0.0)  # the prior slope of 0.5 is right here
    assert (errors["label"].refitted, errors["label"].runs) == (pytest.approx(0.2), 1)
    assert errors["all"].runs == 2


def test_without_a_second_retraining_there_are_no_errors():
    assert time_errors({"retrain": [run_of("retrain", 1, 10, predicted_s=None, elapsed_s=10.0)]}) == {}


def test_a_roll_out_takes_from_the_start_of_its_retraining_to_its_own_end():
    retrained = [run_of("retrain", number, at, predicted_s=None, elapsed_s=9.0) for number, at in ((2, 20), (1, 10))]
    deployed = [run_of("deploy", number, at, predicted_s=None, elapsed_s=1.0) for number, at in ((2, 23), (1, 11))]
    assert roll_out_s(retrained, deployed) == pytest.approx(150.0)  # the median of 210 s and 90 s
    assert roll_out_s(retrained, []) == 0.0


def report_of(**changes):
    counts = {"ingested": 10, "labelled": 4, "filtered": 3, "queued": 2, "corrupt": 1}
    score = {"counts": counts, "accuracy": 0.8, "reviewed": 2, "drifts": [], "age": {"mean": 5, "most": 9, "last": 9}}
    report = StationReport(10, 60.0, 10, score, {}, (), 0, 0, 0, 0, 0, {}, {}, ())
    return replace(report, **changes)


@pytest.mark.parametrize("changes", [{"images": 11}, {"stored": 11}, {"failed": 1}])
def test_a_lost_image_a_second_event_or_a_failed_run_is_not_complete(changes):
    assert report_of().complete
    assert not report_of(**changes).complete
    assert "NOT ALL ACCOUNTED FOR" in report_lines(report_of(**changes))[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_season_with_faults_accounts_for_every_image(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("river")
    pytest.importorskip("paho.mqtt")
    if reason := why_no_mosquitto() or why_no_slurm():
        pytest.skip(reason)
    report = run_season(replace(QUICK, faults=True), tmp_path)
    assert report.complete, report_lines(report)
    assert report.counts["corrupt"] == 1
    assert report.tries >= 1  # of the killed run
    names = [fault.name for fault in report.faults]
    assert names[:2] == ["edge process killed", "broker restarted"]
    assert "Slurm controller killed and restarted" in names
