"""Train a small convolutional network with PyTorch on enlarged digits that lie in memory, with a test each epoch."""

import argparse

import torch
from pace import pace
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--size", type=int, default=48)
parser.add_argument("--copies", type=int, default=6)
parser.add_argument("--rows", type=int, default=1500)
parser.add_argument("--share", type=float, default=1.0)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
small = torch.tensor(digits.images[: args.rows], dtype=torch.float32).unsqueeze(1) / 16
images = functional.interpolate(small, size=(args.size, args.size))
pictures = images.repeat(args.copies, 1, 1, 1)
pictures += 0.1 * torch.randn(pictures.shape)
labels = torch.tensor(digits.target[: args.rows]).repeat(args.copies)
held = TensorDataset(pictures, labels)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
pace(args.share)

for epoch in range(args.epochs):
    for at, (batch, wanted) in enumerate(DataLoader(held, batch_size=128, shuffle=True)):
        if at == 40:
            break
        loss = functional.cross_entropy(model(batch), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(pictures[:500]).argmax(dim=1) == labels[:500]).float().mean().item()
    print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right:.3f}", flush=True)
