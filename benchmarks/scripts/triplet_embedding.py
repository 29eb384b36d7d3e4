"""Metric learning on the olivetti-like digits: triplet margin loss, PIL augmentation, custom sampler."""
import argparse
import os
import tempfile
from collections import defaultdict
from random import Random

import numpy as np
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class DigitFiles(Dataset):
    """Pictures as files on disk, opened with PIL."""

    def __init__(self, root, limit=400):
        raw = load_digits()
        self.samples = []
        for i in range(limit):
            path = os.path.join(root, f"{raw.target[i]}_{i}.png")
            Image.fromarray((raw.images[i] * 15).astype(np.uint8)).save(path)
            self.samples.append((path, int(raw.target[i])))
        self.rng = Random(0)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        path, label = self.samples[i]
        with Image.open(path) as picture:
            picture = picture.convert("L").resize((16, 16), Image.BILINEAR)
            picture = picture.rotate(self.rng.uniform(-10, 10))
            if self.rng.random() < 0.5:
                picture = ImageOps.autocontrast(picture)
            x = torch.from_numpy(np.array(picture, dtype=np.float32) / 255).unsqueeze(0)
        return x, label


class BalancedSampler(Sampler):
    def __init__(self, labels, classes_per_batch, per_class, batches):
        self.by_class = defaultdict(list)
        for i, label in enumerate(labels):
            self.by_class[label].append(i)
        self.p, self.k, self.batches, self.rng = classes_per_batch, per_class, batches, Random(1)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            batch = []
            for c in self.rng.sample(sorted(self.by_class), self.p):
                batch += self.rng.choices(self.by_class[c], k=self.k)
            yield batch


class Embedder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.AdaptiveMaxPool2d(2))
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(256, dim))

    def forward(self, x):
        return nn.functional.normalize(self.head(self.features(x).flatten(1)), dim=-1)


def mine(embeddings, labels):
    with torch.no_grad():
        d = torch.cdist(embeddings, embeddings)
        same = labels[:, None] == labels[None]
        eye = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        positive = d.masked_fill(~same | eye, float("-inf")).argmax(1)
        negative = d.masked_fill(same, float("inf")).argmin(1)
    return positive, negative


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batches", type=int, default=12)
args = parser.parse_args()

with tempfile.TemporaryDirectory() as root:
    dataset = DigitFiles(root)
    sampler = BalancedSampler([label for _, label in dataset.samples], classes_per_batch=5, per_class=6, batches=args.batches)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2, pin_memory=True)
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    model = Embedder().to(device)
    criterion = nn.TripletMarginLoss(margin=0.3)
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    for epoch in range(1, args.epochs + 1):
        for x, labels in loader:
            x = x.to(device)
            labels = labels.to(device)
            z = model(x)
            positive, negative = mine(z, labels)
            loss = criterion(z, z[positive], z[negative])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        hit = (torch.cdist(z, z) + 10 * torch.eye(len(z), device=device)).argmin(1)
        print("epoch {}/{} loss {:.4f} recall@1 {:.3f}".format(epoch, args.epochs, loss, (labels[hit] == labels).float().mean()))
