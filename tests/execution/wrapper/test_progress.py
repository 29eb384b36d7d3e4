"""The progress file, written by real jobs and followed by the wrapper."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import leadline.progress
from leadline.core.jobs import JobState
from leadline.execution.wrapper.outcome import read_outcome
from leadline.execution.wrapper.progress import POLL_BYTES, ProgressFile

WRAPPER = [sys.executable, "-P", "-m", "leadline.execution.wrapper"]


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    result = tmp_path / "result.json"

    def run(*words, options=()):
        command = [*WRAPPER, "--result", str(result), *options, "--", *words]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        return ended, read_outcome(result)

    return run


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "progress"
    path.touch()
    return ProgressFile(path, time.monotonic() - 1000)


def write(file, *lines):
    with file.path.open("a") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    file.poll()


def test_a_shell_job_that_echoes_its_steps_is_measured_without_an_import(measure):
    loop = 'sleep 0.3; for i in 1 2 3 4 5; do sleep 0.1; echo "step=$i t=$(date +%s.%N)" >> "$LEADLINE_PROGRESS"; done'
    ended, outcome = measure("sh", "-c", loop)
    assert ended.returncode == 0
    assert 0.25 <= outcome.measured["startup_s"].value < 2  # a unit is taken off the first report, by the median
    assert 0.1 <= outcome.measured["unit_s"].value < 0.5
    assert outcome.measured["steps"].value == 5
    assert "timed by the job" in outcome.measured["unit_s"].method


def test_a_silent_job_has_no_progress_figures(measure):
    _, outcome = measure("true")
    assert outcome.progress is None
    assert not {"startup_s", "unit_s", "units"} & set(outcome.measured)


def test_the_file_is_gone_after_the_job(measure):
    ended, _ = measure("sh", "-c", 'echo step=1 >> "$LEADLINE_PROGRESS"; echo "$LEADLINE_PROGRESS"')
    assert not Path(ended.stdout.strip()).parent.exists()


def test_a_job_is_ended_once_it_has_shown_enough(measure):
    loop = 'i=0; while :; do i=$((i + 1)); sleep 0.05; echo "step=$i" >> "$LEADLINE_PROGRESS"; done'
    _, outcome = measure("sh", "-c", loop, options=["--stop-units", "5"])
    assert outcome.state is JobState.CANCELLED
    assert outcome.progress.stopped
    assert 5 <= outcome.progress.unit.count < 100


def test_the_helper_writes_and_does_nothing_outside_and_needs_only_its_own_file(measure, tmp_path):
    shutil.copy(leadline.progress.__file__, tmp_path / "progress.py")
    code = "from progress import report\nfor i in range(4): report(step=i, epoch=0, note='a b', total_steps=9)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
    _, outcome = measure(sys.executable, "-c", code)
    assert outcome.measured["steps"].value == 4
    assert outcome.progress.total == 9
    assert outcome.progress.remarks == ()


def test_steps_that_restart_in_each_epoch_are_accumulated(file):
    for epoch in range(3):
        write(file, *(f"epoch={epoch} step={step} t={100 * epoch + 10 * step + 10}" for step in range(10)))
    progress = file.progress()
    epochs, steps = progress.levels
    assert (epochs.name, epochs.count, round(epochs.total_s / 100)) == ("epoch", 2, 2)
    assert (steps.count, steps.length, steps.passes) == (29, 10, 2)
    assert pytest.approx(steps.median_s) == 10
    assert (progress.steps, progress.epochs) == (30, 3)


def test_every_hundredth_step_gives_the_time_of_one(file):
    write(file, *(f"step={step} t={5 + step / 10}" for step in range(100, 1000, 100)))
    assert pytest.approx(file.progress().unit.median_s) == 0.1
    assert file.progress().unit.count == 800


def test_start_up_ends_where_training_begins_and_phases_are_added_up(file):
    write(file, "phase=load t=1", "phase=train t=7", "step=1 t=9", "phase=evaluate t=10", "phase=train t=14")
    progress = file.progress()
    assert progress.startup_s == 7
    assert progress.phases == {"load": 6, "train": 3, "evaluate": 4}


def test_malformed_lines_are_counted_and_passed_over(file):
    write(file, "step=1 t=1", "loss is 3", "\x00\xff", "step=one", "x" * 5000, "step=2 t=2")
    assert file.progress().steps == 2
    assert "4 lines of the progress file were ignored" in file.progress().remarks[0]


def test_a_time_that_cannot_be_true_gives_way_to_when_it_was_seen(file):
    write(file, "step=1 t=900000000000")
    assert 990 < file.steps.newest[0] < 1010


def test_a_huge_file_is_read_in_bounded_pieces_into_bounded_memory(file):
    lines = "".join(f"step={step} t={step / 1000:.3f}\n" for step in range(1, 200_001))
    file.path.write_text(lines)
    assert len(lines) > POLL_BYTES
    while file.poll():
        pass
    unit = file.progress().unit
    assert unit.count == 199_999
    assert len(unit.sampled_s) <= 1001
    assert pytest.approx(unit.median_s) == 0.001


def test_a_file_that_has_gone_is_a_remark(file):
    write(file, "step=1")
    file.path.unlink()
    file.poll()
    assert "could not be read" in file.progress().remarks[0]
