"""Q-learning with a replay buffer that fills as the agent plays: memory grows until the buffer is full."""
import argparse

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6000)
parser.add_argument("--capacity", type=int, default=100000)
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--hidden", type=int, default=256)
args = parser.parse_args()

rng = np.random.default_rng(0)
torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(args.size * args.size, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 4))
optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
buffer, place = [], 0


def remember(one):
    global place
    if len(buffer) < args.capacity:
        buffer.append(one)
    else:
        buffer[place % args.capacity] = one
    place += 1


def frame():
    return rng.integers(0, 256, (args.size, args.size), dtype=np.uint8)


seen = frame()
for step in range(args.steps):
    for _ in range(4):
        with torch.no_grad():
            action = int(network(torch.from_numpy(seen[None]).float() / 255).argmax())
        after = frame()
        remember((seen, action, float(after.mean() / 255), after))
        seen = after
    batch = [buffer[i] for i in rng.integers(0, len(buffer), 32)]
    states = torch.from_numpy(np.stack([one[0] for one in batch])).float() / 255
    afters = torch.from_numpy(np.stack([one[3] for one in batch])).float() / 255
    actions, rewards = torch.tensor([one[1] for one in batch]), torch.tensor([one[2] for one in batch])
    with torch.no_grad():
        target = rewards + 0.99 * network(afters).max(1).values
    loss = nn.functional.smooth_l1_loss(network(states).gather(1, actions[:, None])[:, 0], target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 1000 == 0:
        print(f"step {step}: loss {loss.item():.4f}, {len(buffer)} remembered")
