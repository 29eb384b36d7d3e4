"""A season in one process, without broker and scheduler: the same functions, to compare policies of retraining.

`python season.py --seed 1 --strength 1.0` prints the accuracy of four policies: never retrained, retrained by the
calendar, with reviews spread evenly or before each retraining, and retrained when the station detects drift. The
calendar has as many retrainings and reviews as the last policy needed. All have the same images and reviewer.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from deploy import CHECKED, MARGIN, since
from drift import CALM_SHARE, SAME_DRIFT, Drift, input_signals
from evaluate import score, to_evaluate
from label import decide
from model import Model, fit
from review import Reviewer, next_to_review
from scenes import CLASSES, Season, season_of, season_options
from station import Review, class_numbers
from train import FIRST_PASSES, PASSES, to_train

BATCH = 50
"""Images that are labelled together."""
ARCHIVE = 1500
"""Labelled images of before the season."""
TRAINING = 50
"""Images that arrive while a model is trained."""


@dataclass
class Images:
    """The drawn images of a season, its archive first.

    Attributes:
        pixels: uint8, shape (archive + images, 48, 48, 3).
        labels: True class numbers, shape (archive + images,).
    """

    season: Season
    ids: list[str]
    pixels: np.ndarray
    labels: np.ndarray

    @classmethod
    def draw(cls, season: Season) -> "Images":
        """Draw a whole season."""
        scenes = [season.scene(number) for number in range(-ARCHIVE, season.images)]
        labels = np.array([CLASSES.index(scene.label) for scene in scenes])
        return cls(season, [scene.image_id for scene in scenes], np.stack([scene.pixels for scene in scenes]), labels)

    def first_model(self) -> Model:
        """Train the model that all policies begin with."""
        return self.train(self.archive(), FIRST_PASSES, None)

    def archive(self) -> list[Review]:
        """Return the reviews of before the season."""
        pairs = zip(self.ids[:ARCHIVE], self.labels[:ARCHIVE], strict=True)
        return [Review(image_id, CLASSES[label], "archive") for image_id, label in pairs]

    def of(self, reviews: Sequence[Review]) -> tuple[np.ndarray, np.ndarray]:
        """Return the pixels and the reviewed class numbers."""
        positions = [ARCHIVE + int(review.image_id[:6]) - 100_000 for review in reviews]
        return self.pixels[positions], class_numbers(reviews)

    def train(self, reviews: Sequence[Review], passes: int, start: Model | None, since_drift: str = "") -> Model:
        """Train on reviewed images."""
        chosen, weights = to_train(reviews, since_drift)
        return fit(*self.of(chosen), weights, passes=passes, name=f"model-{reviews[-1].image_id}", start=start)


@dataclass
class Course:
    """How a season went under a policy.

    Attributes:
        right: Whether the deployed model was right, for each image.
        retrained: Numbers of images at which it was retrained.
        deployed: The same, of the models that were promoted; rolled_back those at which the one before came back.
        drifts: Number of the first image and signals of each detected drift.
        counts: Images by outcome.
    """

    right: list[bool] = field(default_factory=list)
    retrained: list[int] = field(default_factory=list)
    deployed: list[int] = field(default_factory=list)
    rolled_back: list[int] = field(default_factory=list)
    drifts: list[tuple[str, list[str]]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    reviewed: int = 0

    @property
    def accuracy(self) -> float:
        """The share of images that the deployed model classified correctly."""
        return sum(self.right) / len(self.right)

    def curve(self, width: int = 250) -> list[float]:
        """Return the accuracy of each stretch of images."""
        return [round(float(np.mean(self.right[at : at + width])), 4) for at in range(0, len(self.right), width)]


def follow(
    images: Images,
    first: Model,
    due: Callable[[int, Drift, int], bool],
    to_ask: Callable[[int], float] | None = None,
    training: int = TRAINING,
) -> Course:
    """Follow a season under a policy.

    Args:
        images: Of the season.
        first: The deployed model at its begin.
        due: Whether to retrain, given the number of the next image, the drift detector, and the images reviewed since
            the newest drift.
        to_ask: Returns how many images are reviewed before the next one; None follows the drift detector.
        training: Images that arrive between the start of a retraining and its roll-out.
    """
    course, drift, reviewer = Course(), Drift(), Reviewer(images.season)
    edge, previous, checked_from = first, first, ""
    candidates: list[tuple[int, Model]] = []  # with the number of the image from which on they may be rolled out
    since_drift = ""
    queue: list[tuple[str, str]] = []
    reviews = images.archive()
    for start in range(0, images.season.images, BATCH):
        batch = slice(ARCHIVE + start, ARCHIVE + start + BATCH)
        ids, pixels = images.ids[batch], images.pixels[batch]
        while candidates and candidates[0][0] <= start:
            _, candidate = candidates.pop(0)
            judged = images.of(to_evaluate(reviews, since_drift))
            if score(candidate, *judged) > score(edge, *judged):
                edge, previous, checked_from = candidate, edge, reviews[-1].image_id
                course.deployed.append(start)
        probabilities, distance = edge.predict(pixels)
        outcomes = decide(ids, probabilities)
        for image_id, outcome in zip(ids, outcomes, strict=True):
            course.counts[outcome.outcome] = course.counts.get(outcome.outcome, 0) + 1
            if outcome.outcome == "queued":
                queue.append((image_id, outcome.why))
        course.right += (probabilities.argmax(1) == images.labels[batch]).tolist()
        signals = {"confidence": probabilities.max(1), "distance": distance}
        drift.update(edge.name, ids, input_signals(pixels) | signals)
        asked = drift.asked if to_ask is None else to_ask(start + BATCH)
        reviews += _review(reviewer, queue, start + BATCH, int(asked) - len(reviews) + ARCHIVE)
        reviews.sort(key=lambda review: review.image_id)
        newest = since(reviews, checked_from)
        if checked_from and len(newest) >= CHECKED:
            judged = images.of(newest)
            if score(previous, *judged) > score(edge, *judged) + MARGIN:
                edge = previous
                course.rolled_back.append(start + BATCH)
            checked_from = ""
        reviewed_since = sum(review.image_id >= drift.since and review.why != "archive" for review in reviews)
        since_drift = drift.since if to_ask is None else ""
        if due(start + BATCH, drift, reviewed_since):
            candidates.append((start + BATCH + training, images.train(reviews, PASSES, edge, since_drift)))
            course.retrained.append(start + BATCH)
    course.drifts, course.reviewed = drift.drifts, len(reviews) - ARCHIVE
    return course


def _review(reviewer: Reviewer, queue: list[tuple[str, str]], now: int, most: int) -> list[Review]:
    """Take from the queue what the reviewer has answered by now."""
    waited = [entry for entry in queue if int(entry[0][:6]) - 100_000 < now - reviewer.delay]
    chosen = next_to_review(waited, most)
    for entry in chosen:
        queue.remove(entry)
    return [Review(image_id, reviewer.answer(image_id), why) for image_id, why in chosen]


def compare(season: Season, training: int = TRAINING) -> dict[str, Course]:
    """Return the course of the season under each policy; for ``training`` see `follow`."""
    torch.set_num_threads(1)
    images = Images.draw(season)
    first = images.first_model()
    triggered = follow(images, first, lambda _, drift, reviewed: drift.retrain(reviewed), training=training)
    turns, reviewed = len(triggered.retrained), triggered.reviewed
    calendar = [round(season.images / (turns + 1) * (turn + 1) / BATCH) * BATCH for turn in range(turns)]
    calm = min(CALM_SHARE * season.images, reviewed)

    def evenly(number: int) -> float:
        return reviewed * number / season.images

    def before_retraining(number: int) -> float:
        due = sum(min(max(1 + (number - turn) / SAME_DRIFT, 0.0), 1.0) for turn in calendar)
        return calm * number / season.images + (reviewed - calm) * due / max(turns, 1)

    def is_due(number: int, *_: object) -> bool:
        return number in calendar

    return {
        "never": follow(images, first, lambda *_: False, evenly),
        "scheduled": follow(images, first, is_due, evenly, training),
        "scheduled, reviews before": follow(images, first, is_due, before_retraining, training),
        "triggered": triggered,
    }


def main() -> None:
    """Compare the policies over one season."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    season_options(parser)
    parser.add_argument("--training", type=int, default=TRAINING, help="images that arrive while a model is trained")
    options = parser.parse_args()
    for name, course in compare(season_of(options), options.training).items():
        facts = asdict(course)
        facts.pop("right")
        print(json.dumps({"policy": name, "accuracy": round(course.accuracy, 4), "curve": course.curve()} | facts))


if __name__ == "__main__":
    main()
