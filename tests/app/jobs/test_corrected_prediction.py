"""What is asked for is predicted as a job's own earlier runs correct it, and its runs say by how much it was."""

import sys

import pytest

from leadline.app.composition import toolbox
from leadline.app.jobs.job_request import JobRequest, build_job_spec, predict_job, resolve_request
from leadline.app.jobs.journal import submit_jobs
from leadline.app.jobs.plane_advisor import PlaneAdvisor
from leadline.app.models.retrain import CORRECTED_TAG, retrain
from leadline.app.settings import data_dir, history_path
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, Place
from leadline.core.runs import Measurement, Run
from leadline.execution.plane.advisor import EndedAttempt
from leadline.history.sqlite import SqliteHistory
from leadline.training.shipped_files import shipped_live_table

PLACE, SLOWER = "Pitzer:gpu", 3.0
AT = Place("Pitzer", "gpu")
COMMAND = (sys.executable, "train.py")
TRAIN = """
import torch
device = torch.device("cuda")
model = torch.nn.Linear(4096, 4096).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(100000):
    optimizer.zero_grad()
    model(torch.randn(4096, 4096, device=device)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    toolbox.cache_clear()
    yield
    toolbox.cache_clear()


def prepared():
    return resolve_request(JobRequest(COMMAND, (PLACE,), account="A", gpus=1, cores=4), toolbox())


def keep(told, count=30):
    """Let runs enter the history that took ``SLOWER`` times as long as was told, a little more or less."""

    def run(at):
        took_s = told.elapsed_s.point * SLOWER * (1 + 0.01 * (at % 5 - 2))
        return Run(f"r{at}", build_job_spec(JobRequest(COMMAND, gpus=1), AT), JobState.COMPLETED,
                   f"2026-01-{at + 1:02}T10:00:00Z", predicted=told,
                   measured={"elapsed_s": Measurement(took_s, "s", "test")})  # fmt: skip

    SqliteHistory(history_path()).add_all(map(run, range(count)))


def test_earlier_runs_correct_the_request_and_the_run_records_the_factor():
    first = prepared()
    assert first.tags == {}
    keep(first.predicted)
    assert any(lesson.replaced for lesson in retrain(folder=data_dir()))
    second = prepared()
    assert second.predicted.elapsed_s.point == pytest.approx(SLOWER * first.predicted.elapsed_s.point, rel=0.05)
    assert second.spec.resources.walltime_s > first.spec.resources.walltime_s
    assert float(second.tags[CORRECTED_TAG + "elapsed_s"]) == pytest.approx(SLOWER, rel=0.05)
    (job,) = submit_jobs(second)
    history = SqliteHistory(history_path())
    ended = Attempt("a-1", job.key, 1, job.policy.places[0], job.spec.resources, state=JobState.COMPLETED,
                    started_at="2026-03-01T10:00:00Z", ended_at="2026-03-01T11:00:00Z")  # fmt: skip
    PlaneAdvisor(toolbox().catalog, history, shipped_live_table()).ended([EndedAttempt(job, ended, None)])
    assert second.tags == {name: value for name, value in history.get("a-1").tags.items() if name in second.tags}


def test_other_jobs_are_not_corrected_and_a_damaged_correction_is_reported():
    keep(predict_job(AT, COMMAND, toolbox(), name="train", gpus=1).estimate)
    retrain(folder=data_dir())
    assert predict_job(AT, COMMAND, toolbox(), gpus=1, name="another").tags == {}
    for path in (data_dir() / "corrections").iterdir():
        path.write_bytes(b"no archive")
    prediction = predict_job(AT, COMMAND, toolbox(), name="train", gpus=1)
    assert prediction.tags == {}
    assert "not corrected by earlier runs" in prediction.estimate.notes[-1]
