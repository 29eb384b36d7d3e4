"""Fit a linear classifier by stochastic gradients with scikit-learn, block by block of a table in memory."""

import argparse

import numpy as np
from pace import pace
from sklearn.linear_model import SGDClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=100_000)
parser.add_argument("--passes", type=int, default=20)
parser.add_argument("--blocks", type=int, default=50)
parser.add_argument("--share", type=float, default=1.0)
args = parser.parse_args()

rng = np.random.default_rng(0)
table = rng.standard_normal((args.rows, 256))
labels = (table[:, 0] + table[:, 1] * table[:, 2] > 0).astype(int)
pace(args.share)

model = SGDClassifier()
for one in range(args.passes):
    for block in range(args.blocks):
        rows = slice(block * 800 % args.rows, block * 800 % args.rows + 800)
        model.partial_fit(table[rows], labels[rows], classes=[0, 1])
    print(f"pass {one}: {model.score(table[:1000], labels[:1000]):.3f}", flush=True)
