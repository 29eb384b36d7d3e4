"""A training script that the questions trace."""

import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--half", action="store_true")
options = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
x, y = torch.rand(2048, 3, 32, 32), torch.randint(0, 10, (2048,))
model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                      nn.Linear(128, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(options.epochs):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=options.batch_size, shuffle=True):
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=options.half):
            loss = nn.functional.cross_entropy(model(a.to(device)), b.to(device))
        loss.backward()
        optimizer.step()
