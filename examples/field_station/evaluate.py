"""Evaluation stage: compare the new model with the deployed one on reviewed images that neither was trained on.

A better model is kept as `models/better.pt`, since the next training may replace the candidate before the roll-out. The
score is the mean probability that a model gives the reviewed label. It varies less than the share of right labels,
and a few dozen images must decide. Metric: `better` (1 or 0), which the roll-out waits for.
"""

import io
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from model import Model
from station import Review, class_numbers, load_images, newest_drift, read_reviews, replace_file, write_result

FEWEST, MOST = 10, 30
"""Held-out images that decide: those since the newest drift, within these bounds."""


def held_out(review: Review) -> bool:
    """Return whether a review is never trained on: every fifth of the season."""
    return review.why != "archive" and zlib.crc32(f"held-out {review.image_id}".encode()) % 5 == 0


def to_evaluate(reviews: Sequence[Review], since: str = "") -> list[Review]:
    """Return the newest held-out reviews, from the image on at which the newest drift began."""
    chosen = [review for review in reviews if held_out(review)]
    fresh = sum(review.image_id >= since for review in chosen)
    return chosen[-min(max(fresh, FEWEST), MOST) :]


def score(model: Model, pixels: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean probability of the right class, for images (n, 48, 48, 3) and class numbers (n,)."""
    return float(model.predict(pixels)[0][np.arange(len(labels)), labels].mean())


def main() -> None:
    """Compare `models/candidate.pt` with `edge/model.pt`."""
    reviews = to_evaluate(read_reviews(), newest_drift())
    content = Path("models/candidate.pt").read_bytes()
    deployed = Path("edge/model.pt")
    if not deployed.exists() or not reviews:
        replace_file(Path("models/better.pt"), content)
        write_result(better=1.0, images=len(reviews))
        return
    pixels, labels = load_images(reviews), class_numbers(reviews)
    new, old = score(Model.load(io.BytesIO(content)), pixels, labels), score(Model.load(deployed), pixels, labels)
    if new > old:
        replace_file(Path("models/better.pt"), content)
    write_result(better=float(new > old), new=new, deployed=old, images=len(reviews))


if __name__ == "__main__":
    main()
