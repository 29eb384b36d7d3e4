"""Roll-out stage: put the new model on the edge, or the one before it back.

`python deploy.py` replaces the edge's model in one step by the newest one that was found better.
`python deploy.py --check` rolls back when the model before it scores better on the images reviewed since. Metrics:
`deployed` or `rolled_back` (1 or 0).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from evaluate import score
from model import Model
from station import Review, class_numbers, load_images, read_reviews, replace_file, write_result

CHECKED = 40
"""Reviewed images since the roll-out that decide on a roll-back."""
MARGIN = 0.02
"""By which the model before must score better."""


def since(reviews: Sequence[Review], newest: str) -> list[Review]:
    """Return the first reviews after a roll-out, given the newest image that was reviewed then."""
    return [review for review in reviews if review.why != "archive" and review.image_id > newest][:CHECKED]


def roll_out(edge: Path, candidate: Path, newest: str) -> None:
    """Replace the edge's model in one step and keep the one before it."""
    deployed = edge / "model.pt"
    if deployed.exists():
        if Model.load(deployed).name == Model.load(candidate).name:  # a repeated run
            return
        replace_file(edge / "previous.pt", deployed.read_bytes())
    replace_file(edge / "deployed.json", json.dumps({"newest": newest, "checked": not deployed.exists()}).encode())
    replace_file(deployed, candidate.read_bytes())


def roll_back(edge: Path, reviews: Sequence[Review], folder: Path) -> bool:
    """Put the model before it back if it scores better on the images reviewed since; decides once a roll-out."""
    facts = json.loads((edge / "deployed.json").read_text())
    newest = since(reviews, facts["newest"])
    if facts["checked"] or len(newest) < CHECKED:
        return False
    pixels, labels = load_images(newest, folder), class_numbers(newest)
    before, now = (score(Model.load(edge / name), pixels, labels) for name in ("previous.pt", "model.pt"))
    if worse := before > now + MARGIN:
        replace_file(edge / "model.pt", (edge / "previous.pt").read_bytes())
    replace_file(edge / "deployed.json", json.dumps(facts | {"checked": True}).encode())
    return worse


def main() -> None:
    """Roll out, or check the last roll-out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="roll back if the model before is better")
    reviews = read_reviews()
    if parser.parse_args().check:
        write_result(rolled_back=float(roll_back(Path("edge"), reviews, Path("labels"))))
        return
    season = [review.image_id for review in reviews if review.why != "archive"]
    better = Path("models/better.pt")
    roll_out(Path("edge"), better if better.exists() else Path("models/candidate.pt"), max(season, default=""))
    write_result(deployed=1.0)


if __name__ == "__main__":
    main()
