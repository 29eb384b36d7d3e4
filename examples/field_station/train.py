"""Training stage: train a model on reviewed images and write it with its metrics.

`python train.py --first` trains the first model, on the images of before the season. `python train.py` retrains
the deployed model: half of what it sees are the newest reviewed images, half all older ones, so it forgets nothing.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from evaluate import held_out
from model import Model, fit
from station import Review, class_numbers, load_images, newest_drift, read_reviews, write_result

FIRST_PASSES, PASSES = 20, 6
FEWEST, MOST = 20, 150
"""Reviewed images that count as new: those since the newest drift, within these bounds."""


def to_train(reviews: Sequence[Review], since: str = "") -> tuple[list[Review], np.ndarray]:
    """Return the reviews to train on and how often each is drawn, shape (n,); held-out ones are left out.

    Args:
        reviews: All, the oldest image first.
        since: Id of the image at which the newest drift began.
    """
    archive = [review for review in reviews if review.why == "archive"]
    season = [review for review in reviews if review.why != "archive" and not held_out(review)]
    fresh = sum(review.image_id >= since for review in season)
    newest = season[-min(max(fresh, FEWEST), MOST) :]
    older = archive + season[: len(season) - len(newest)]
    weights = [1 / len(part) for part in (older, newest) for _ in part]
    return older + newest, np.array(weights)


def main() -> None:
    """Train on `labels/` and write `models/candidate.pt`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", action="store_true", help="train the first model instead of retraining")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    reviews, weights = to_train(read_reviews(), newest_drift())
    name = "first" if options.first else f"model-{reviews[-1].image_id}"
    start = None if options.first else Model.load(Path("edge/model.pt"))
    passes = FIRST_PASSES if options.first else PASSES
    model = fit(load_images(reviews), class_numbers(reviews), weights, passes=passes, name=name, start=start)
    model.metrics["seconds"] = time.perf_counter() - began
    model.save(Path("models/candidate.pt"))
    write_result(**model.metrics)


if __name__ == "__main__":
    main()
