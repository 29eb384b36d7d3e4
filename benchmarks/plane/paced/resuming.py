"""Fit a wide linear model in numpy; after each round a checkpoint is written, and a new start goes on from it."""

import argparse
import os
from pathlib import Path

import numpy as np
from pace import pace

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=100_000)
parser.add_argument("--rounds", type=int, default=100)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.npz"))
parser.add_argument("--share", type=float, default=1.0)
args = parser.parse_args()

rng = np.random.default_rng(0)
x = rng.standard_normal((args.rows, 512), dtype=np.float32)
y = x @ rng.standard_normal((512, 32), dtype=np.float32)
weights, begun = np.zeros((512, 32), dtype=np.float32), 0
if args.checkpoint.exists():
    with np.load(args.checkpoint) as kept:
        weights, begun = kept["weights"], int(kept["rounds"])
    print(f"goes on from round {begun}", flush=True)
pace(args.share)

for done in range(begun, args.rounds):
    for _ in range(args.steps):
        chosen = rng.integers(0, args.rows, 256)
        weights -= 0.1 / 256 * x[chosen].T @ (x[chosen] @ weights - y[chosen])
    unfinished = args.checkpoint.with_suffix(".part.npz")
    np.savez(unfinished, weights=weights, rounds=done + 1)
    os.replace(unfinished, args.checkpoint)
    if done % 10 == 0:
        print(f"round {done}: error {np.abs(x[:100] @ weights - y[:100]).mean():.4f}", flush=True)
