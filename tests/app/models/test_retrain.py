"""The verb ``retrain``: finished runs replace what answers, in one step, where that is better."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))
from made_runs import campaign, make_run

from leadline.app.models.retrain import CORRECTED_TAG, correct_estimate, retrain
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.runs import Measurement, Scale
from leadline.estimators.tabular import registry
from leadline.history.sqlite import SqliteHistory
from leadline.training import model as models
from leadline.training.build import TrainingOrigin, build_model
from leadline.training.records import TrainingOptions, run_records


@pytest.fixture
def quick(monkeypatch):
    few = {name: registry.ESTIMATORS[name] for name in ("linear", "scaling_law")}
    monkeypatch.setattr(registry, "ESTIMATORS", few)
    return few


@pytest.fixture
def home(tmp_path, quick):
    """Return a data folder with a model of ``net``, and a history in which its machine became slower."""
    model, _ = build_model(
        run_records(campaign(60, 20)),
        quick,
        TrainingOrigin("a table", "2026-01-02", ""),
        TrainingOptions(("elapsed_s",)),
    )
    models.save_model(model, tmp_path / "models" / "net.npz")
    keep(tmp_path, [*slower(1000, 25, 1.0), *slower(2000, 30, 1.4)])
    return tmp_path


def slower(first, count, times):
    draw = random.Random(first)  # noqa: S311
    runs = []
    for number in range(count):
        run = make_run(first + number, epochs=draw.randint(20, 60), samples=draw.randint(20, 100) * 1000,
                       cores=draw.choice((1, 2, 4)), kind=draw.choice("ab"), scale=Scale.FULL_SCALE,
                       noise=draw.gauss(0, 0.02))  # fmt: skip
        took = Measurement(run.measured["elapsed_s"].value * times, "s", "test")
        runs.append(replace(run, measured={**run.measured, "elapsed_s": took}))
    return runs


def keep(folder, runs):
    history = SqliteHistory(folder / "history.sqlite")
    for run in runs:
        history.add(run)


def estimate(seconds):
    return Estimate(Target("node"), "roofline", Basis(Tier.SPECS), Interval(seconds, seconds / 3, seconds * 3))


def predicted(first, count, times, tags=None, scale=1.0):
    """Return runs of a job without a model, each predicted at ``scale`` times what the estimator itself says."""
    draw = random.Random(first)  # noqa: S311
    runs = []
    for number in range(count):
        run = make_run(first + number, epochs=draw.randint(1, 50), name="bare", tags=tags)
        seconds = run.measured["elapsed_s"].value / times
        runs.append(replace(run, predicted=estimate(seconds * scale * draw.lognormvariate(0, 0.05))))
    return runs


def test_a_model_is_replaced_and_the_older_one_kept_beside(home):
    path = home / "models" / "net.npz"
    before = path.read_bytes()
    (lesson,) = retrain(folder=home)
    assert (lesson.replaced, lesson.drifted, lesson.application) == (True, True, "net")
    assert "replaced (elapsed_s drifted" in lesson.sentence
    assert before == Path(lesson.older).read_bytes()
    (line,) = models.load_model(path).card.refits
    assert line.older == f"older/{Path(lesson.older).name}"
    assert line.older in path.with_suffix(".md").read_text()
    assert [file.name for file in path.parent.glob("*.npz")] == ["net.npz"]


def test_a_rejected_refit_is_not_repeated(home):
    retrain(folder=home)
    kept = (home / "models" / "net.npz").read_bytes()
    (lesson,) = retrain(folder=home)
    assert (lesson.replaced, lesson.new_runs) == (False, 0)
    assert kept == (home / "models" / "net.npz").read_bytes()


def test_a_death_before_the_replacement_leaves_the_older_model_answering(home, monkeypatch):
    path = home / "models" / "net.npz"
    before = path.read_bytes()

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(models, "save_model", die)
        with pytest.raises(KeyboardInterrupt):
            retrain(folder=home)
    assert before == path.read_bytes()
    (lesson,) = retrain(folder=home)
    assert lesson.replaced


def test_a_model_that_is_kept_is_not_tried_again_at_every_run(home):
    keep(home, slower(2000, 30, 1.0))
    (first,) = retrain(folder=home)
    (second,) = retrain(folder=home)
    assert "no better by more than chance and noise" in first.reason
    assert second.reason == "it was reconsidered with 55 of these 55 runs"


def test_an_application_without_a_model_is_corrected_and_estimates_say_so(tmp_path, quick):
    keep(tmp_path, predicted(100, 30, 2.5))
    (lesson,) = retrain(folder=tmp_path)
    assert (lesson.replaced, lesson.estimator) == (True, "roofline")
    corrected, tags = correct_estimate(estimate(100.0), "bare", folder=tmp_path)
    assert pytest.approx(corrected.elapsed_s.point, rel=0.05) == 250
    assert corrected.elapsed_s.high / corrected.elapsed_s.low < 2
    assert pytest.approx(float(tags[CORRECTED_TAG + "elapsed_s"]), rel=0.05) == 2.5
    assert "fitted to 30 runs of bare" in corrected.notes[0]
    assert (estimate(100.0), {}) == correct_estimate(estimate(100.0), "another", folder=tmp_path)


def test_predictions_that_were_corrected_are_counted_without_it(tmp_path, quick):
    keep(tmp_path, predicted(100, 30, 2.5))
    retrain(folder=tmp_path)
    keep(tmp_path, predicted(200, 30, 2.5, {CORRECTED_TAG + "elapsed_s": "2.5"}, scale=2.5))
    (lesson,) = retrain(folder=tmp_path)
    assert not lesson.replaced
    assert (
        pytest.approx(
            float(correct_estimate(estimate(1.0), "bare", folder=tmp_path)[1][CORRECTED_TAG + "elapsed_s"]), rel=0.05
        )
        == 2.5
    )


def test_a_damaged_file_of_rejected_refits_is_reported_with_the_fix(tmp_path, quick):
    (tmp_path / "learned.json").write_text("{")
    with pytest.raises(InvalidInput, match="delete it"):
        retrain(folder=tmp_path)
