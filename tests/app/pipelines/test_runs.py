"""The verb run on this machine's real plane: exactly once whatever is killed, back-pressure, retries, and stopping."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from leadline.app.composition import toolbox
from leadline.app.jobs.journal import find_jobs
from leadline.app.pipelines.plan import plan_pipeline
from leadline.app.pipelines.runs import pipeline_status, run_pipeline, stop_pipeline
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.history.sqlite import SqliteHistory
from leadline.pipelines.journal import PipelineJournal
from tests.support.mqtt_broker import mqtt_broker, why_no_mosquitto

pytest.importorskip("watchfiles")
pytest.importorskip("croniter")

# Appending one short line is atomic: the file tells how often each event was processed.
LABEL = """
import json, os, sys, time
events = [json.loads(line) for line in open(os.environ["LEADLINE_PIPELINE_EVENTS"])]
time.sleep(float(sys.argv[1]))
with open("labelled.txt", "a") as stream:
    stream.write("".join(event["id"].split()[0] + "\\n" for event in events))
with open(os.environ["LEADLINE_PIPELINE_RESULT"], "w") as stream:
    json.dump({"metrics": {"labels": len(events), "drift": len(events) / 10}}, stream)
"""
TRAIN = """
import json, os
with open("trained.txt", "a") as stream:
    stream.write(open(os.environ["LEADLINE_PIPELINE_EVENTS"]).read())
"""
PIPELINE = f"""
[pipeline]
name = "station"
folder = "season"

[events.images]
SOURCE
[events.drifted]
metric = {{ stage = "label", name = "drift", above = 0.5 }}

[stages.label]
command = "{sys.executable} {{home}}/label.py SECONDS"
on = "images"
batch = {{ most = 10, wait = "200 ms" }}
waiting = 40

[stages.train]
command = "{sys.executable} {{home}}/train.py"
on = "drifted"
"""
FILES = 'files = "incoming/*.jpg"\nsettle = "100 ms"'
IDLE_S = 3.0


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    toolbox.cache_clear()


@pytest.fixture
def station(tmp_path):
    (tmp_path / "label.py").write_text(LABEL)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "season" / "incoming").mkdir(parents=True)
    return Station(tmp_path)


class Station:
    """A pipeline in a folder, and what it has made."""

    def __init__(self, home):
        self.home, self.season, self.file = home, home / "season", home / "station.toml"
        self.reports = []
        self.write()

    def write(self, *, source=FILES, seconds="0", **changes):
        text = PIPELINE.replace("SOURCE", source).replace("SECONDS", seconds)
        for old, new in changes.items():
            text = text.replace(old, new)
        self.file.write_text(text)

    def arrive(self, *numbers):
        for number in numbers:
            (self.season / "incoming" / f"{number}.jpg").write_bytes(b"x")

    def run(self, **more):
        return run_pipeline(self.file, report=self.reports.append, **{"idle_s": IDLE_S, **more})

    def start(self, *options):
        command = [sys.executable, "-m", "leadline", "pipeline", "run", str(self.file), *options]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    @property
    def labelled(self):
        path = self.season / "labelled.txt"
        return path.read_text().split() if path.exists() else []

    def counts(self, stage="label"):
        return next(each.counts for each in pipeline_status(self.file).stages if each.name == stage)


def wait_for(condition, most_s=60.0):
    deadline_s = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.05)


def test_events_are_processed_once_and_a_crossed_line_starts_the_next_stage(station):
    station.arrive(*range(23))
    report = station.run()
    assert sorted(station.labelled) == sorted(f"incoming/{number}.jpg" for number in range(23))
    assert (report.events, report.completed, report.failed) == (23, 4, 0)
    trained = [json.loads(line) for line in (station.season / "trained.txt").read_text().splitlines()]
    assert [(event["source"], event["payload"]["labels"]) for event in trained] == [("drifted", 10)]
    # They are jobs as all others, with their measured runs in the history.
    jobs = find_jobs(all_jobs=True)
    assert sorted(job.spec.name for job in jobs) == ["station-label"] * 3 + ["station-train"]
    tags = [run.tags["stage"] for run in SqliteHistory(station.home / "data" / "history.sqlite").runs()]
    assert sorted(tags) == ["label"] * 3 + ["train"]
    assert station.run(idle_s=1.0).events == 0
    assert len(station.labelled) == 23


def test_a_plan_predicts_from_past_runs_and_writes_nothing(station):
    before = plan_pipeline(station.file)
    assert [(stage.name, stage.forecast.elapsed_s) for stage in before.stages] == [("label", None), ("train", None)]
    assert not (station.season / "events.sqlite").exists()
    station.arrive(*range(20))
    station.run()
    label = plan_pipeline(station.file).stages[0]
    assert (label.forecast.basis, label.events) == ("2 past runs", 10)
    assert label.forecast.elapsed_s.low < label.forecast.elapsed_s.point < label.forecast.elapsed_s.high
    with PipelineJournal(station.season) as journal:
        newest, oldest = journal.past_runs("label")
    assert oldest.predicted_s is None
    assert newest.predicted_s is not None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_runner_that_is_killed_again_and_again_loses_no_event_and_repeats_none(station):
    station.write(seconds="0.3")
    total = 0
    for wait_s in (0.6, 1.0, 1.4, 1.8, 2.2, 2.6, 3.0, 3.4):
        runner = station.start()
        station.arrive(*range(total, total + 15))
        total += 15
        time.sleep(wait_s)
        runner.kill()
        runner.communicate()
        assert runner.returncode == -signal.SIGKILL
    station.run()
    assert sorted(station.labelled) == sorted(f"incoming/{number}.jpg" for number in range(total))
    counts = station.counts()
    assert (counts.events_done, counts.events_failed, counts.events_waiting) == (total, 0, 0)
    with PipelineJournal(station.season) as journal:
        assert journal.open_batches() == ()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_messages_of_a_restarted_broker_and_a_killed_runner_are_processed_once(station, tmp_path):
    pytest.importorskip("paho.mqtt")
    if reason := why_no_mosquitto():
        pytest.skip(reason)
    with mqtt_broker(tmp_path / "broker") as broker:
        station.write(
            source=f'mqtt = {{ broker = "127.0.0.1:{broker.port}", topic = "traps/+/images" }}', seconds="0.2"
        )
        runner = station.start()
        wait_for((station.season / "events.sqlite").exists)
        with PipelineJournal(station.season) as journal:
            # The broker keeps messages for the runner from its first connection on.
            wait_for(lambda: broker.publish({"0": b"x"}) or journal.source_counts())
        broker.publish({str(number): b"x" for number in range(50)})
        runner.kill()
        runner.communicate()
        broker.publish({str(number): b"x" for number in range(40, 80)})  # ten of them a second time
        broker.save()
        broker.stop(kill=True)
        broker.start()
        runner = station.start("--until-idle", "5s")
        time.sleep(3.0)
        broker.publish({str(number): b"x" for number in range(70, 120)})
        _, notes = runner.communicate(timeout=120)
    assert runner.returncode == 0, notes
    assert len(station.labelled) == len(set(station.labelled)) == 120
    assert station.counts().events_done == 120


@pytest.mark.timeout(120)
def test_events_wait_outside_when_a_stage_cannot_keep_up(station):
    station.write(seconds="1")
    station.arrive(*range(100))
    most = 0

    def look():
        nonlocal most
        while not done.is_set():
            if (station.season / "events.sqlite").exists():
                most = max(most, station.counts().events_waiting)
            time.sleep(0.05)

    done = threading.Event()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        station.run()
    finally:
        done.set()
        thread.join()
    assert 30 <= most <= 40
    assert sorted(station.labelled) == sorted(f"incoming/{number}.jpg" for number in range(100))
    assert station.reports.count("images: paused, since label cannot keep up") >= 1


def test_a_call_that_ends_when_idle_waits_for_events_that_wait_for_others(station):
    station.write(**{'wait = "200 ms"': 'wait = "4 s"'})
    station.arrive(1)
    assert station.run(idle_s=1.0).completed == 1


def test_a_call_that_ends_when_idle_waits_for_files_that_are_not_complete_yet(station):
    station.write(source=FILES.replace("100 ms", "4 s"))
    station.arrive(1)
    assert station.run(idle_s=1.0).completed == 1


def test_a_failed_run_is_tried_again_with_the_same_events(station):
    station.home.joinpath("label.py").write_text(
        "import os, sys\n"
        "if not os.path.exists('tried'):\n    open('tried', 'w')\n    sys.exit('no model yet')\n" + LABEL
    )
    station.arrive(*range(5))
    report = station.run()
    assert (report.completed, report.failed) == (1, 0)
    assert len(station.labelled) == 5
    assert any("label-1 ended FAILED" in line and "trying it again" in line for line in station.reports)


@pytest.mark.timeout(120)
def test_a_stage_that_always_fails_starts_no_more_and_keeps_its_events(station):
    good = station.home.joinpath("label.py").read_text()
    station.home.joinpath("label.py").write_text("import sys; sys.exit('broken')")
    station.write(**{"waiting = 40": "waiting = 40\ntries = 1"})
    station.arrive(*range(60))
    report = station.run()
    assert (report.completed, report.failed) == (0, 3)
    counts = station.counts()
    assert (counts.events_failed, counts.events_waiting) == (30, 30)
    assert any("3 runs failed in a row, so no more start" in line for line in station.reports)
    station.home.joinpath("label.py").write_text(good)
    report = station.run(retry_failed=True)
    assert sorted(station.labelled) == sorted(f"incoming/{number}.jpg" for number in range(60))
    assert station.counts().events_failed == 0


def test_a_stopped_pipeline_ends_after_the_runs_in_progress(station):
    station.write(seconds="2")
    station.arrive(*range(30))
    runner = station.start()
    wait_for(lambda: (station.season / "events.sqlite").exists() and station.counts().events_running == 10)
    with pytest.raises(LeadlineError, match="is being run by process"):
        station.run()
    assert pipeline_status(station.file).runner.startswith("process ")
    assert "starts no more runs" in stop_pipeline(station.file)
    _, notes = runner.communicate(timeout=60)
    assert runner.returncode == 0, notes
    assert "stopped by leadline pipeline stop" in notes
    counts = station.counts()
    assert (counts.events_done, counts.events_running, counts.events_waiting) == (10, 0, 20)
    assert "is not running" in stop_pipeline(station.file)
    station.run()
    assert len(station.labelled) == 30


def test_metrics_that_are_no_numbers_are_reported_and_the_run_counts(station):
    station.home.joinpath("label.py").write_text(
        'import os; open(os.environ["LEADLINE_PIPELINE_RESULT"], "w").write(\'{"metrics": {"drift": "high", "n": 2}}\')'
    )
    station.arrive(1)
    assert station.run().completed == 1
    assert any("no finite number: drift" in line for line in station.reports)
    assert pipeline_status(station.file).stages[0].metrics == {"n": 2.0}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[events.images]", "[tiers.here]\ncores = 999\n[events.images]", "tier 'here' does not fit this machine"),
        ("[events.images]", '[tiers.x]\ndevice = "Jetson Nona"\n[events.images]', "did you mean 'Jetson Nano'"),
        ("[events.images]", '[tiers.x]\non = "Nowhere:gpu"\n[events.images]', "unknown system 'Nowhere'"),
        (sys.executable, "label.py", "stage 'label': label.py is"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(station, old, new, reason):
    (station.season / "label.py").write_text("")
    station.write(**{old: new})
    with pytest.raises(InvalidInput) as raised:
        station.run()
    assert reason in str(raised.value)
    assert not (station.season / "events.sqlite").exists()


def test_a_pipeline_that_never_ran_has_no_status(station):
    with pytest.raises(InvalidInput, match="was never run"):
        pipeline_status(station.file)
    with pytest.raises(InvalidInput, match="was never run"):
        stop_pipeline(Path(station.file))


def test_a_cancelled_run_is_not_tried_again(station):
    from leadline.app.jobs.journal import cancel_jobs

    station.write(seconds="30")
    station.arrive(1)
    runner = station.start("--until-idle", "2s")
    wait_for(lambda: any(job.current_state is JobState.RUNNING for job in find_jobs()))
    cancel_jobs(["station-label"])
    _, notes = runner.communicate(timeout=60)
    assert "ended CANCELLED" in notes
    assert station.counts().events_failed == 1
