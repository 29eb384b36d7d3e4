"""Q-learning of a linear policy with a replay memory that fills as the agent plays: memory grows with the work."""

import argparse

import numpy as np
from pace import pace

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4000)
parser.add_argument("--capacity", type=int, default=3000)
parser.add_argument("--size", type=int, default=160)
parser.add_argument("--share", type=float, default=1.0)
args = parser.parse_args()

rng = np.random.default_rng(0)
weights = np.zeros((args.size, 4), dtype=np.float32)
memory = []
pace(args.share)

frame = rng.standard_normal((args.size, args.size), dtype=np.float32)
for step in range(args.steps):
    seen = frame
    action = int((seen.mean(axis=0) @ weights).argmax()) if rng.random() > 0.1 else int(rng.integers(4))
    frame = rng.standard_normal((args.size, args.size), dtype=np.float32)
    one = (seen, action, float(frame[0, action]))
    if len(memory) < args.capacity:
        memory.append(one)
    else:
        memory[step % args.capacity] = one
    for index in rng.integers(0, len(memory), 16):
        state, chosen, reward = memory[index]
        features = state.mean(axis=0)
        weights[:, chosen] += 0.01 * (reward - features @ weights[:, chosen]) * features
    if step % 500 == 0:
        print(f"step {step}: {len(memory)} remembered, norm {np.linalg.norm(weights):.3f}", flush=True)
