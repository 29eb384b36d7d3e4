"""Out-of-core learning with scikit-learn: batches from a generator into partial_fit."""
import argparse

import numpy as np
from sklearn.linear_model import SGDClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--passes", type=int, default=40)
parser.add_argument("--batches", type=int, default=100)
args = parser.parse_args()


def batches(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((400, 200))
        yield x, (x[:, 0] + x[:, 1] > 0).astype(int)


model = SGDClassifier()
for one in range(args.passes):
    for x, y in batches(args.batches):
        model.partial_fit(x, y, classes=[0, 1])
    if one % 10 == 0:
        print(f"pass {one}: {model.score(x, y):.3f}")
