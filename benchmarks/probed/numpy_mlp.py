"""A two-layer network in plain numpy: gradients by hand, an evaluation after every epoch."""
import argparse

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--batch", type=int, default=64)
args = parser.parse_args()

rng = np.random.default_rng(0)
x, y = rng.standard_normal((6000, 128)), rng.integers(0, 10, 6000)
layers = [rng.standard_normal((128, 256)) * 0.1, rng.standard_normal((256, 10)) * 0.1]


def forward(rows):
    values = [rows]
    for weights in layers[:-1]:
        values.append(np.maximum(values[-1] @ weights, 0))
    return values, values[-1] @ layers[-1]


def train(rows, labels):
    values, scores = forward(rows)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    slope = scores / scores.sum(axis=1, keepdims=True)
    slope[np.arange(len(labels)), labels] -= 1
    for at in reversed(range(len(layers))):
        change = values[at].T @ slope / len(labels)
        slope = (slope @ layers[at].T) * (values[at] > 0)
        layers[at] -= 0.1 * change


for epoch in range(args.epochs):
    order = rng.permutation(5000)
    for start in range(0, 5000, args.batch):
        chosen = order[start : start + args.batch]
        train(x[chosen], y[chosen])
    right = (forward(x[5000:])[1].argmax(axis=1) == y[5000:]).mean()
    if epoch % 10 == 0:
        print(f"epoch {epoch}: accuracy {right:.3f}")
