"""Edge stage: label a batch of images on one thread, queue the uncertain, and watch for drift.

`python label.py` reads the batch's events. It filters empty frames, labels the certain images, and queues the others
for review, with a random share of all. Corrupt files are set aside. Outcomes are kept by image, so a repeated event or
a repeated run changes nothing. Metrics: images by outcome, mean confidence, `accuracy` and `age` of the model, `drift`,
and `retrain` (1 or 0).
"""

import hashlib
import json
import os
import pickle
import sqlite3
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drift import Drift, input_signals
from model import Model
from scenes import CLASSES, read_jpeg
from station import Review, count, events, read_reviews, replace_file, results, take_answers, write_result

EMPTY = 0.80
"""Probability of "empty" from which a frame is filtered."""
CERTAIN = 0.75
"""Probability of an animal from which its label needs no review."""
RANDOM_SHARE = 0.03
"""Of all images, reviewed at random: they measure the accuracy without bias."""

JUDGED = 50
"""Latest random reviews that give the accuracy; half as many are enough."""


@dataclass(frozen=True)
class Outcome:
    """An image's outcome: labelled, filtered or queued, and why it was queued."""

    outcome: str
    label: str
    confidence: float
    why: str = ""


def decide(image_ids: list[str], probabilities: np.ndarray) -> list[Outcome]:
    """Return each image's outcome from the class probabilities, shape (n, 6)."""
    outcomes = []
    for image_id, row in zip(image_ids, probabilities, strict=True):
        label, confidence = CLASSES[int(row.argmax())], float(row.max())
        # the id decides, not a random number: a repeated run has the same outcome
        if zlib.crc32(image_id.encode()) % 1000 < 1000 * RANDOM_SHARE:
            outcomes.append(Outcome("queued", label, confidence, "random"))
        elif label == "empty" and confidence >= EMPTY:
            outcomes.append(Outcome("filtered", label, confidence))
        elif label != "empty" and confidence >= CERTAIN:
            outcomes.append(Outcome("labelled", label, confidence))
        else:
            outcomes.append(Outcome("queued", label, confidence, "uncertain"))
    return outcomes


def main() -> None:
    """Label the images of this run's events."""
    torch.set_num_threads(1)
    run = os.environ.get("LEADLINE_PIPELINE_EVENTS", "")
    with results() as connection:
        last = read_state(connection, "result")
        if run and last and last["run"] == run:  # killed after it had kept everything: the same result again
            write_result(**last["metrics"])
        else:
            write_result(**_label(connection, Model.load(Path("edge/model.pt")), run))


def _label(connection: sqlite3.Connection, model: Model, run: str) -> dict[str, float]:
    """Label the images, keep the outcomes, and return the metrics."""
    take_answers()
    files, pixels, corrupt, repeated = _read_images(connection)
    outcomes: list[Outcome] = []
    drift, drifted = read_state(connection, "drift") or Drift(), []
    if files:
        array, ids = np.stack(pixels), list(files)
        probabilities, distance = model.predict(array)
        outcomes = decide(ids, probabilities)
        predictions = {"confidence": probabilities.max(1), "distance": distance}
        drifted = drift.update(model.name, ids, input_signals(array) | predictions)
    for image_id, outcome in zip(files, outcomes, strict=True):
        if outcome.outcome == "queued":
            replace_file(Path("queue") / f"{image_id}.jpg", files[image_id])
            entry = {
                "id": image_id,
                "file": f"{image_id}.jpg",
                "label": outcome.label,
                "confidence": outcome.confidence,
            }
            with Path("queue/queue.jsonl").open("a") as stream:
                stream.write(json.dumps(entry) + "\n")  # a repeated run writes it again, which changes nothing
    reviews = read_reviews()
    reviewed = sum(review.image_id >= drift.since and review.why != "archive" for review in reviews)
    retrain = drift.retrain(reviewed)
    if drift.since:
        replace_file(Path("labels/drift.txt"), drift.since.encode())
    # outcomes and the detectors' state change together: a run that was killed has changed neither
    with connection:
        connection.executemany(
            "insert into images (id, outcome, label, confidence, why, model) values (?, ?, ?, ?, ?, ?)",
            [(image_id, o.outcome, o.label, o.confidence, o.why, model.name)
             for image_id, o in zip(files, outcomes, strict=True)]
            + [(image_id, "corrupt", "", 0.0, "", model.name) for image_id in corrupt],
        )  # fmt: skip
        confidence = float(np.mean([o.confidence for o in outcomes])) if outcomes else 1.0
        metrics = {**count(connection), **_judge(connection, model, reviews), "repeated": repeated,
                   "confidence": confidence, "drift": float(bool(drifted)), "drifts": len(drift.drifts),
                   "retrain": float(retrain)}  # fmt: skip
        for name, content in (("drift", drift), ("result", {"run": run, "metrics": metrics})):
            connection.execute("insert or replace into state values (?, ?)", (name, pickle.dumps(content)))
    return metrics


def _judge(connection: sqlite3.Connection, model: Model, reviews: list[Review]) -> dict[str, float]:
    """Return the model's age in images, and the accuracy of the labels that were reviewed at random."""
    newest = model.name.removeprefix("model-") if model.name.startswith("model-") else ""
    ((age,),) = connection.execute("select count(*) from images where id > ?", (newest,))
    right = {review.image_id: review.label for review in reviews if review.why == "random"}
    latest = connection.execute("select id, label from images where why = 'random' order by id desc").fetchall()
    judged = [right[image_id] == label for image_id, label in latest if image_id in right][:JUDGED]
    return {"age": age} | ({"accuracy": float(np.mean(judged))} if len(judged) >= JUDGED / 2 else {})


def _read_images(connection: sqlite3.Connection) -> tuple[dict[str, bytes], list[np.ndarray], list[str], int]:
    """Return the new images' files by id, their pixels, the ids of corrupt files, and how many were here before."""
    known = {image_id for (image_id,) in connection.execute("select id from images")}
    files: dict[str, bytes] = {}
    pixels, corrupt, repeated = [], [], 0
    for event in events():
        content = Path(str(event["file"])).read_bytes()
        try:
            image_id, image = read_jpeg(content)
        except (OSError, SyntaxError, ValueError):
            image_id, image = f"corrupt-{hashlib.sha256(content).hexdigest()[:16]}", None
        if image_id in known or image_id in files or image_id in corrupt:
            repeated += 1
        elif image is None:
            corrupt.append(image_id)
            replace_file(Path("corrupt") / image_id, content)
        else:
            files[image_id] = content
            pixels.append(image)
    return files, pixels, corrupt, repeated


def read_state(connection: sqlite3.Connection, name: str) -> Any:  # noqa: ANN401 - one of two types
    """Return what the last run kept under a name: "drift", its detectors, or "result"; None before any."""
    row = connection.execute("select content from state where name = ?", (name,)).fetchone()
    return pickle.loads(row[0]) if row else None  # noqa: S301 - the station's own file


if __name__ == "__main__":
    main()
