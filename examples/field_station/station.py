"""The station's files: events and results of a pipeline's stage, one atomic write, and the reviewed images.

The folders, all below the pipeline's: `queue/` has images that wait for a reviewer, and `queue.jsonl` for the
web page. `labels/` has the reviewed ones with `labels.csv`, `models/` the trained models, `edge/` the deployed model
with the one before it, `corrupt/` files that are no image, and `results.sqlite` the outcome of every image.
"""

import csv
import fcntl
import io
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from scenes import CLASSES, read_jpeg

TABLES = """
create table if not exists images (
    id text primary key, outcome text not null, label text not null, confidence real not null,
    why text not null, model text not null, reviewed integer not null default 0);
create table if not exists state (name text primary key, content blob not null);
"""
"""An image's outcome is labelled, filtered, queued or corrupt; why names the reason of a place in the queue."""


@dataclass(frozen=True)
class Review:
    """A reviewer's answer.

    Attributes:
        why: Why the image was queued: "random" or "uncertain", or "archive" for images of before the season.
    """

    image_id: str
    label: str
    why: str


def events() -> list[dict[str, object]]:
    """Return the events of this run of a stage; none where the pipeline gave no file."""
    path = os.environ.get("LEADLINE_PIPELINE_EVENTS")
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if path else []


def write_result(**metrics: float) -> None:
    """Give the pipeline this run's metrics."""
    print(json.dumps(metrics))
    if path := os.environ.get("LEADLINE_PIPELINE_RESULT"):
        replace_file(Path(path), json.dumps({"metrics": metrics}).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def results() -> AbstractContextManager[sqlite3.Connection]:
    """Open the outcomes of all images, and close them at the end of a with statement."""
    connection = sqlite3.connect("results.sqlite", timeout=60)
    connection.execute("pragma journal_mode = wal")
    connection.executescript(TABLES)
    return closing(connection)


def count(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many images came to each outcome, and how many in all."""
    counts = dict.fromkeys(("labelled", "filtered", "queued", "corrupt"), 0)
    counts.update(connection.execute("select outcome, count(*) from images group by outcome"))
    return {"ingested": sum(counts.values()), **counts}


def read_reviews(folder: Path = Path("labels")) -> list[Review]:
    """Return all reviews, the oldest image first."""
    path = folder / "labels.csv"
    if not path.exists():
        return []
    return sorted(
        (Review(**row) for row in csv.DictReader(io.StringIO(path.read_text()))), key=lambda review: review.image_id
    )


def newest_drift(folder: Path = Path("labels")) -> str:
    """Return the id of the image at which the newest drift began; "" before any."""
    path = folder / "drift.txt"
    return path.read_text() if path.exists() else ""


def write_reviews(reviews: Iterable[Review], folder: Path = Path("labels")) -> None:
    """Write all reviews; the last one of an image holds."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Review)])
    writer.writeheader()
    latest: Mapping[str, Review] = {review.image_id: review for review in reviews}
    writer.writerows(asdict(review) for review in latest.values())
    replace_file(folder / "labels.csv", text.getvalue().encode())


def answer(reviews: Sequence[Review]) -> None:
    """Keep reviews and their images in `labels/`, and take the images from the queue."""
    for review in reviews:
        queued = Path("queue") / f"{review.image_id}.jpg"
        if queued.exists():  # after a crash it may have been moved already
            replace_file(Path("labels") / queued.name, queued.read_bytes())
    with Path("labels/lock").open("w") as lock:  # a person on the web page and review.py may answer at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_reviews([*read_reviews(), *reviews])
    with results() as connection, connection:
        connection.executemany("update images set reviewed = 1 where id = ?", [(r.image_id,) for r in reviews])
    for review in reviews:
        (Path("queue") / f"{review.image_id}.jpg").unlink(missing_ok=True)


def take_answers() -> None:
    """Keep the answers that a person gave on the web page."""
    path = Path("queue/answers.jsonl")
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    labels = {row["id"]: row["label"] for row in map(json.loads, lines)}
    with results() as connection:
        waiting = connection.execute("select id, why from images where outcome = 'queued' and not reviewed").fetchall()
    if reviews := [Review(image_id, labels[image_id], why) for image_id, why in waiting if image_id in labels]:
        answer(reviews)


def load_images(reviews: Iterable[Review], folder: Path = Path("labels")) -> np.ndarray:
    """Return the pixels of reviewed images, shape (n, 48, 48, 3)."""
    return np.stack([read_jpeg((folder / f"{review.image_id}.jpg").read_bytes())[1] for review in reviews])


def class_numbers(reviews: Iterable[Review]) -> np.ndarray:
    """Return the reviewed labels as class numbers, shape (n,)."""
    return np.array([CLASSES.index(review.label) for review in reviews])
