import contextlib
import json
import sqlite3
import sys

import deploy
import evaluate
import label
import numpy as np
import pytest
import review
import scenes
import station
import train
from drift import CALM_SHARE, Drift
from model import Model


def test_every_image_is_labelled_filtered_queued_or_set_aside(run_stage, write_images, folder):
    files = write_images(range(30))
    broken = folder / "broken.jpg"
    broken.write_bytes(files[0].read_bytes()[:400])
    metrics = run_stage(label.main, [*files, files[3], broken])
    assert metrics["ingested"] == 31
    assert metrics["ingested"] == sum(metrics[outcome] for outcome in ("labelled", "filtered", "queued", "corrupt"))
    assert metrics["corrupt"] == 1
    assert metrics["repeated"] == 1
    assert len(list((folder / "queue").glob("*.jpg"))) == metrics["queued"]
    assert len(list((folder / "corrupt").iterdir())) == 1


def test_a_batch_that_comes_again_counts_nothing_twice(run_stage, write_images):
    files = write_images(range(20))
    first = run_stage(label.main, files)
    again = run_stage(label.main, files, batch=2)
    assert again["ingested"] == first["ingested"] == 20
    assert again["repeated"] == 20


def test_a_run_killed_at_its_end_answers_the_same_when_tried_again(run_stage, write_images):
    files = write_images(range(20))
    assert run_stage(label.main, files) == run_stage(label.main, files)


def test_a_run_killed_before_it_kept_anything_feeds_the_detectors_once(run_stage, write_images, monkeypatch):
    files = write_images(range(20))
    monkeypatch.setattr(label, "count", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_stage(label.main, files)
    monkeypatch.undo()
    # the undo took the folder and the environment, too, so look from outside
    with contextlib.closing(sqlite3.connect(files[0].parent / "results.sqlite")) as connection:
        assert connection.execute("select count(*) from images").fetchone() == (0,)
        assert connection.execute("select count(*) from state").fetchone() == (0,)


def test_an_answer_moves_an_image_from_the_queue_to_the_labels(run_stage, write_images, folder, monkeypatch):
    run_stage(label.main, write_images(range(30)))
    waiting = review.queue()
    image_id, why = waiting[0]
    monkeypatch.setattr(sys, "argv", ["review", image_id, "boar"])
    review.main()
    assert (image_id, why) not in review.queue()
    assert station.read_reviews() == [station.Review(image_id, "boar", why)]
    assert (folder / "labels" / f"{image_id}.jpg").exists()
    assert not (folder / "queue" / f"{image_id}.jpg").exists()
    with station.results() as connection:
        assert station.count(connection)["queued"] == len(waiting)


def test_an_answer_of_the_web_page_is_kept_by_the_next_run(run_stage, write_images, folder):
    run_stage(label.main, write_images(range(30)))
    (image_id, why), *others = review.queue()
    queued = [json.loads(line) for line in (folder / "queue" / "queue.jsonl").read_text().splitlines()]
    assert {entry["id"] for entry in queued} == {image_id, *(other for other, _ in others)}
    assert all((folder / "queue" / entry["file"]).exists() for entry in queued)
    answers = [{"id": image_id, "label": "hare"}, {"id": "unknown", "label": "fox"}]
    text = "".join(f"{json.dumps(answer)}\n" for answer in answers)
    (folder / "queue" / "answers.jsonl").write_text(text + '{"id": "in the mid')
    run_stage(label.main, write_images(range(30, 33)), batch=2)
    assert station.read_reviews() == [station.Review(image_id, "hare", why)]
    assert not (folder / "queue" / f"{image_id}.jpg").exists()
    assert (image_id, why) not in review.queue()


def test_random_images_are_reviewed_first_then_the_newest():
    queue = [("100001-trap0", "uncertain"), ("100000-trap0", "random"), ("100002-trap0", "uncertain")]
    assert review.next_to_review(queue, 2) == [("100000-trap0", "random"), ("100002-trap0", "uncertain")]


def test_the_reviewer_errs_at_the_stated_rate():
    season = scenes.Season(seed=5)
    reviewer = review.Reviewer(season, error=0.5)
    wrong = np.mean([reviewer.answer(season.scene(n).image_id) != season.label(n) for n in range(200)])
    assert 0.25 < wrong < 0.55  # a random answer may be right


def _write_archive(folder, numbers):
    season = scenes.Season(seed=5)
    for number in numbers:
        scene = season.scene(number)
        station.replace_file(folder / "labels" / f"{scene.image_id}.jpg", scene.jpeg())
    why = {number: "archive" if number < 0 else "random" for number in numbers}
    reviews = [station.Review(season.scene(n).image_id, season.label(n), why[n]) for n in numbers]
    station.write_reviews(reviews)
    return reviews


def test_a_retrained_model_is_compared_and_rolled_out(run_stage, folder, monkeypatch):
    monkeypatch.setattr(train, "PASSES", 1)
    _write_archive(folder, range(-60, 60))
    assert run_stage(train.main)["images"] < 120  # some are held out
    metrics = run_stage(evaluate.main)
    assert metrics["better"] == float(metrics["new"] > metrics["deployed"])
    run_stage(deploy.main)
    run_stage(deploy.main, batch=2)  # repeated: the model before stays the first
    assert Model.load(folder / "edge/previous.pt").name == "first"
    assert Model.load(folder / "edge/model.pt").name.startswith("model-")


def test_no_held_out_image_is_trained_on(folder):
    reviews = _write_archive(folder, range(-10, 60))
    trained, weights = train.to_train(reviews)
    assert weights.sum() == pytest.approx(2.0)
    assert not set(trained) & set(evaluate.to_evaluate(reviews))
    assert len(trained) + sum(map(evaluate.held_out, reviews)) == len(reviews)


def test_a_worse_model_is_rolled_back(run_stage, folder):
    worse = Model.load(folder / "edge/model.pt")
    worse.name, worse.network.classify.bias.data[3] = "worse", 50.0  # all are foxes
    worse.save(folder / "models/candidate.pt")
    _write_archive(folder, range(10))
    run_stage(deploy.main)
    assert run_stage(deploy.main, arguments=["--check"])["rolled_back"] == 0  # too few images reviewed since
    _write_archive(folder, range(10 + deploy.CHECKED))
    assert run_stage(deploy.main, arguments=["--check"])["rolled_back"] == 1
    assert Model.load(folder / "edge/model.pt").name == "first"
    assert json.loads((folder / "edge/deployed.json").read_text())["checked"]


def test_a_drift_among_the_first_images_is_one(folder):
    drift, random = Drift(), np.random.default_rng(1)
    for number in range(0, 300, 50):
        ids = [f"{each:06d}" for each in range(number, number + 50)]
        drift.update("first", ids, {"brightness": random.normal(0.4 if number < 150 else 0.8, 0.05, 50)})
    assert len(drift.drifts) == 1
    assert 50 <= int(drift.since) <= 200


def test_drift_is_detected_after_a_change_and_asks_for_reviews_and_retrainings():
    drift, random = Drift(), np.random.default_rng(1)
    for number in range(0, 2000, 50):
        ids = [f"{each:06d}" for each in range(number, number + 50)]
        drift.update("first", ids, {"brightness": random.normal(0.4 if number < 1000 else 0.6, 0.1, 50)})
        if number < 1000:
            assert not drift.drifts
            assert drift.asked == pytest.approx(CALM_SHARE * (number + 50))
            assert not drift.retrain(1000)
    assert len(drift.drifts) == 1
    assert 800 <= int(drift.since) <= 1050  # ADWIN drops whole buckets
    assert drift.asked > 1.5 * CALM_SHARE * 2000
    assert [drift.retrain(number) for number in (10, 60, 60, 300, 300)] == [False, True, False, True, False]
