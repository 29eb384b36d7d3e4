"""Train a two-layer network in plain numpy on a table that lies in memory; gradients by hand, a test each epoch."""

import argparse

import numpy as np
from pace import pace

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=100_000)
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--share", type=float, default=1.0)
args = parser.parse_args()

rng = np.random.default_rng(0)
x = rng.standard_normal((args.rows, 512), dtype=np.float32)
y = (x[:, :10] @ rng.standard_normal((10, 10), dtype=np.float32)).argmax(axis=1)
inner = rng.standard_normal((512, 128), dtype=np.float32) * 0.05
outer = rng.standard_normal((128, 10), dtype=np.float32) * 0.1
pace(args.share)


def step(rows, labels):
    global inner, outer
    hidden = np.maximum(rows @ inner, 0)
    scores = hidden @ outer
    slope = np.exp(scores - scores.max(axis=1, keepdims=True))
    slope /= slope.sum(axis=1, keepdims=True)
    slope[np.arange(len(labels)), labels] -= 1
    back = (slope @ outer.T) * (hidden > 0)
    outer -= 0.1 * hidden.T @ slope / len(labels)
    inner -= 0.1 * rows.T @ back / len(labels)


for epoch in range(args.epochs):
    for _ in range(args.steps):
        chosen = rng.integers(0, args.rows, 256)
        step(x[chosen], y[chosen])
    right = (np.maximum(x[:500] @ inner, 0) @ outer).argmax(axis=1) == y[:500]
    print(f"epoch {epoch}: accuracy {right.mean():.3f}", flush=True)
