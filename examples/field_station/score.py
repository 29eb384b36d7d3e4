"""How the season went, against its truth, which the pipeline never saw.

`python score.py --seed 1` prints JSON: images by outcome, accuracy in all and of each stretch of 250 images, reviews,
drifts, and the models that were deployed, with their age in images.
"""

import argparse
import json
from statistics import mean

from label import read_state
from scenes import Season, number_of, season_of, season_options
from station import count, read_reviews, results

STRETCH = 250
"""Images of one point of the curve."""


def score_season(season: Season) -> dict[str, object]:
    """Return the score; the age of a model is the number of images since the newest that it learned from."""
    with results() as connection:
        counts, drift = count(connection), read_state(connection, "drift")
        query = "select id, label, model from images where outcome != 'corrupt' order by id"
        rows = connection.execute(query).fetchall()
    right = [label == season.label(number_of(image_id)) for image_id, label, _ in rows]
    ages, first = [], {}
    for image_id, _, model in rows:
        newest = number_of(model.removeprefix("model-")) if model.startswith("model-") else 0
        ages.append(number_of(image_id) - newest)
        first.setdefault(model, number_of(image_id))
    return {
        "counts": counts,
        "accuracy": mean(right),
        "curve": [round(mean(right[at : at + STRETCH]), 4) for at in range(0, len(right), STRETCH)],
        "reviewed": sum(review.why != "archive" for review in read_reviews()),
        "drifts": [] if drift is None else drift.drifts,
        "models": first,
        "age": {"mean": round(mean(ages), 1), "most": max(ages), "last": ages[-1]},
    }


def main() -> None:
    """Print the score as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    season_options(parser)
    print(json.dumps(score_season(season_of(parser.parse_args()))))


if __name__ == "__main__":
    main()
