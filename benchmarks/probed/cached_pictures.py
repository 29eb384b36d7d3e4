"""A small CNN on pictures that are decoded when first asked for and kept: memory grows in the first epoch."""
import argparse
import io
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--pictures", type=int, default=2000)
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--batch", type=int, default=32)
args = parser.parse_args()


class Pictures(Dataset):
    def __init__(self, count, size, seed):
        rng = np.random.default_rng(seed)
        self.size = size
        self.packed = [zlib.compress(rng.integers(0, 4, 3 * size * size, dtype=np.uint8).tobytes(), 1) for _ in range(count)]
        self.cache = {}

    def __len__(self):
        return len(self.packed)

    def __getitem__(self, i):
        if i not in self.cache:
            pixels = np.frombuffer(io.BytesIO(zlib.decompress(self.packed[i])).read(), np.uint8)
            self.cache[i] = torch.from_numpy(pixels.reshape(3, self.size, self.size).astype(np.float32) / 4)
        return self.cache[i], i % 10


torch.manual_seed(0)
train = DataLoader(Pictures(args.pictures, args.size, 0), batch_size=args.batch, shuffle=True)
valid = DataLoader(Pictures(args.pictures // 8, args.size, 1), batch_size=64)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(args.epochs):
    model.train()
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in valid)
    print(f"epoch {epoch}: loss {loss.item():.3f}, right {right}")
torch.save(model.state_dict(), "pictures.pt")
