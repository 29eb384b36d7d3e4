"""The review queue, and a reviewer who stands for the person.

`leadline web --allow-submit` has a page of the queue. `python review.py` lists it, too, and `python review.py ID LABEL`
confirms or corrects an image.
`python review.py --stand-in` answers from the truth of the generated season until it is ended, with a delay and an
error rate.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from label import read_state
from scenes import CLASSES, Season, number_of, season_of, season_options
from station import Review, answer, read_reviews, results


@dataclass(frozen=True)
class Reviewer:
    """A reviewer who answers from the truth.

    Attributes:
        error: Share of wrong answers.
        delay: Between an image and its review, in images (a season in one process) or seconds (the stand-in).
    """

    season: Season
    error: float = 0.03
    delay: float = 100

    def answer(self, image_id: str) -> str:
        """Return the label, or at times a wrong one; the same answer for the same image."""
        random = np.random.default_rng([self.season.seed, number_of(image_id) + 100_000, 3])
        if random.random() < self.error:
            return str(random.choice(CLASSES))
        return self.season.label(number_of(image_id))


def next_to_review(queue: Sequence[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """Return which of the queued images, given as id and why, come first: the random ones, then the newest."""
    return sorted(queue, key=lambda entry: (entry[1] == "random", entry[0]), reverse=True)[:most]


def queue() -> list[tuple[str, str]]:
    """Return id and why of the images that wait."""
    with results() as connection:
        return connection.execute("select id, why from images where outcome = 'queued' and not reviewed").fetchall()


def stand_in(reviewer: Reviewer) -> None:
    """Answer what has waited for the delay, as many as the station asked for."""
    while True:
        with results() as connection:
            drift = read_state(connection, "drift")
        done = sum(review.why != "archive" for review in read_reviews())
        ripe = time.time() - reviewer.delay
        waiting = [entry for entry in queue() if (Path("queue") / f"{entry[0]}.jpg").stat().st_mtime < ripe]
        chosen = next_to_review(waiting, max(int(drift.asked if drift else 0) - done, 0))
        if chosen:
            answer([Review(image_id, reviewer.answer(image_id), why) for image_id, why in chosen])
        time.sleep(0.5)


def main() -> None:
    """List the queue, answer for an image, or stand in for a person."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image", nargs="?")
    parser.add_argument("label", nargs="?", choices=CLASSES)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--delay", type=float, default=2.0, help="seconds")
    parser.add_argument("--error", type=float, default=0.03)
    season_options(parser)
    options = parser.parse_args()
    if options.stand_in:
        stand_in(Reviewer(season_of(options), options.error, delay=options.delay))
    elif options.label:
        reasons = dict(queue())
        if options.image not in reasons:
            parser.error(f"{options.image} is not in the queue: `python review.py` lists it")
        answer([Review(options.image, options.label, reasons[options.image])])
    else:
        for image_id, why in next_to_review(queue(), 20):
            print(image_id, why)


if __name__ == "__main__":
    main()
