"""Review queues: files of a stage that a person confirms or corrects; and figures that a pipeline's page shows.

The stage appends JSON lines to ``queue.jsonl`` in the queue's folder: ``{"id": "7", "file": "7.jpg", "label": "deer",
"confidence": 0.6}``. Answers are appended to ``answers.jsonl``: ``{"id": "7", "label": "fox", "at": "2026-..."}``.
"""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from leadline.app.pipelines.find import find_pipeline
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName, excerpt
from leadline.core.frozen import Frozen
from leadline.core.pipelines import Pipeline, ReviewQueue
from leadline.execution.clock import now_utc
from leadline.files.lock import file_lock
from leadline.files.read import is_file, read_input
from leadline.pipelines.spec import read_pipeline

QUEUE, ANSWERS, LOCK = "queue.jsonl", "answers.jsonl", ".answers.lock"
IMAGES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".gif": "image/gif", ".webp": "image/webp"}
"""Suffixes of files that are shown, and their types; none of these can run a script."""
FIGURES = "figures"
"""Folder of a pipeline with images that its page shows."""
MOST_BYTES, LONGEST_LABEL = 64 * 2**20, 100


class QueuedFile(Frozen):
    """A file that waits for review, with its proposed label."""

    id: str
    file: str
    label: str = ""
    confidence: float | None = None


class ReviewAnswer(Frozen):
    """The label that a person gave a file."""

    id: str
    label: str
    at: str


Line = TypeVar("Line", QueuedFile, ReviewAnswer)


class Review(Frozen):
    """The files that wait in the queue of a stage, the newest first, and the possible labels (any text if empty)."""

    pipeline: str
    stage: str
    labels: tuple[str, ...]
    waiting: tuple[QueuedFile, ...]


def count_waiting(pipeline: Pipeline) -> dict[str, int]:
    """Return stage → the number of its files that wait for review, of the stages with a queue."""
    queues = {name: stage.review for name, stage in pipeline.stages.items() if stage.review is not None}
    return {name: len(_waiting(Path(pipeline.folder, queue.folder))) for name, queue in queues.items()}


def read_review(name: str, stage: str, folder: Path) -> Review:
    """Return the review queue of a stage; ``name`` is a pipeline that a user of the folder may name.

    Raises:
        UnknownName: there is no such pipeline, or it has no such stage with a queue.
        InvalidInput: a file of the queue cannot be read.
    """
    queue, place = _find(name, stage, folder)
    return Review(name, stage, queue.labels, tuple(reversed(_waiting(place))))


def review_file(name: str, stage: str, identity: str, folder: Path) -> tuple[Path, str]:
    """Return the path of an image of a queue and its media type.

    Raises:
        UnknownName: it does not wait in the queue.
        InvalidInput: it is no image, or lies outside the queue's folder.
    """
    _, place = _find(name, stage, folder)
    entry = _entry(place, identity)
    path = (place / entry.file).resolve()
    kind = IMAGES.get(path.suffix.lower())
    if kind is None or not path.is_relative_to(place.resolve()):
        raise InvalidInput(f"{excerpt(entry.file)!r} is no image ({', '.join(IMAGES)}) in {place}")
    return path, kind


def list_figures(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the names of the images in a pipeline's folder of figures."""
    place = Path(pipeline.folder, FIGURES)
    return tuple(sorted(path.name for path in place.glob("*") if path.suffix.lower() in IMAGES and is_file(path)))


def figure_file(name: str, figure: str, folder: Path) -> tuple[Path, str]:
    """Return the path of a figure of a pipeline and its media type.

    Raises:
        UnknownName: there is no such pipeline or figure.
    """
    pipeline = read_pipeline(find_pipeline(name, folder))
    figures = list_figures(pipeline)
    if figure not in figures:
        raise UnknownName("figure", figure, figures)
    path = Path(pipeline.folder, FIGURES, figure)
    return path, IMAGES[path.suffix.lower()]


def answer_review(name: str, stage: str, identity: str, label: str, folder: Path) -> ReviewAnswer:
    """Append the answer for a file of a queue.

    Raises:
        UnknownName: the file does not wait in the queue.
        InvalidInput: the label is none of the stage's labels, empty or too long.
        LeadlineError: the answer cannot be written.
    """
    queue, place = _find(name, stage, folder)
    if queue.labels and label not in queue.labels:
        raise InvalidInput(f"the label is {excerpt(label)!r}, but it must be one of {', '.join(queue.labels)}")
    if not label.strip() or len(label) > LONGEST_LABEL or not label.isprintable():
        raise InvalidInput(f"the label is {excerpt(label)!r}: write 1 to {LONGEST_LABEL} printable characters")
    answer = ReviewAnswer(identity, label, now_utc())
    with file_lock(place / LOCK) as locked:
        if not locked:
            raise LeadlineError("another answer is being written: try it again")
        _entry(place, identity)
        _append(place / ANSWERS, to_json(answer, indent=0).encode() + b"\n")
    return answer


def _append(path: Path, line: bytes) -> None:
    try:
        with path.open("ab") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise LeadlineError(f"{path} is not writable ({error.strerror}): change its permissions") from error


def _find(name: str, stage: str, folder: Path) -> tuple[ReviewQueue, Path]:
    pipeline = read_pipeline(find_pipeline(name, folder))
    queues = {each.name: each.review for each in pipeline.stages.values() if each.review is not None}
    if stage not in queues:
        raise UnknownName("stage with a review queue:", stage, queues)
    return queues[stage], Path(pipeline.folder, queues[stage].folder)


def _entry(place: Path, identity: str) -> QueuedFile:
    waiting = {entry.id: entry for entry in _waiting(place)}
    if identity not in waiting:
        raise UnknownName("file that waits for review:", identity, [*waiting][:5])
    return waiting[identity]


def _waiting(place: Path) -> list[QueuedFile]:
    """Return the files of a queue without an answer, whose files are there."""
    queued = {entry.id: entry for entry in _lines(place / QUEUE, QueuedFile)}
    answered = {answer.id for answer in _lines(place / ANSWERS, ReviewAnswer)}
    return [entry for entry in queued.values() if entry.id not in answered and is_file(place / entry.file)]


def _lines(path: Path, kind: type[Line]) -> list[Line]:
    """Return the complete lines of a JSON-lines file; none if it does not exist."""
    if not path.exists():
        return []
    *lines, _ = read_input(path, most=MOST_BYTES).split(b"\n")  # a writer may be in the middle of the last line
    try:
        return [msgspec.json.decode(line, type=kind) for line in lines if line.strip()]
    except ValueError as error:  # msgspec's errors, too
        raise InvalidInput(f"{path} has a line of another form: {error}") from error
