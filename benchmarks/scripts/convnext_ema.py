"""Images with everything at once: batches fetched ahead, mixup, averaged weights, clipping, kept checkpoints, a table."""
import argparse
import copy
import csv
import math
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Bytes(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return self.images

    def __getitem__(self, place):
        return np.random.randint(0, 255, (3, 64, 64), dtype=np.uint8), place % 20


def stack(items):
    images = torch.zeros((len(items), 3, 64, 64), dtype=torch.uint8)
    for i, (image, _) in enumerate(items):
        images[i] += torch.from_numpy(image)
    return images, torch.tensor([label for _, label in items])


class Ahead:
    """Sends a batch to the device on a stream of its own while the one before is used."""

    def __init__(self, loader, device):
        self.loader, self.device = loader, device
        self.mean = torch.tensor([124.0, 116.0, 104.0], device=device).view(1, 3, 1, 1)
        self.std = torch.tensor([58.0, 57.0, 57.0], device=device).view(1, 3, 1, 1)

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        held = None
        stream = torch.cuda.Stream() if self.device.type == "cuda" else None
        for x, y in self.loader:
            with torch.cuda.stream(stream):
                x = x.to(self.device, non_blocking=True).float().sub_(self.mean).div_(self.std)
                y = y.to(self.device, non_blocking=True)
            if held is not None:
                yield held
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)
            held = x, y
        yield held


class Block(nn.Module):
    def __init__(self, dim, drop=0.1):
        super().__init__()
        self.depth, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim)
        self.wide, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.scale, self.drop = nn.Parameter(1e-6 * torch.ones(dim)), drop

    def forward(self, x):
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = (self.narrow(F.gelu(self.wide(y))) * self.scale).permute(0, 3, 1, 2)
        if self.training:
            y = y * y.new_empty((len(y), 1, 1, 1)).bernoulli_(1 - self.drop).div_(1 - self.drop)
        return x + y


class Net(nn.Module):
    def __init__(self, dims=(16, 32, 64), classes=20):
        super().__init__()
        parts = [nn.Conv2d(3, dims[0], 4, 4), nn.BatchNorm2d(dims[0])]
        for i, dim in enumerate(dims):
            parts += [nn.Conv2d(dims[i - 1], dim, 2, 2)] if i else []
            parts += [Block(dim)]
        self.parts, self.head = nn.Sequential(*parts), nn.Linear(dims[-1], classes)

    def forward(self, x):
        return self.head(self.parts(x).mean((2, 3)))


class Averaged(nn.Module):
    def __init__(self, model, decay=0.999):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for mine, new in zip(self.module.state_dict().values(), model.state_dict().values()):
            mine.copy_(self.decay * mine + (1 - self.decay) * new)


def mix(x, y, classes=20, smoothing=0.1):
    share = float(np.random.beta(0.8, 0.8))
    x.mul_(share).add_(x.flip(0).mul_(1 - share))
    soft = torch.full((len(y), classes), smoothing / classes, device=x.device)
    one, other = (soft.scatter(1, labels.view(-1, 1), 1 - smoothing) for labels in (y, y.flip(0)))
    return x, one * share + other * (1 - share)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", default="convnext_output")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device).to(memory_format=torch.channels_last)
    average = Averaged(model)
    plain = [p for p in model.parameters() if p.ndim <= 1]
    decayed = [p for p in model.parameters() if p.ndim > 1]
    optimizer = torch.optim.AdamW([{"params": plain, "weight_decay": 0.0}, {"params": decayed}], lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    settings = dict(batch_size=32, num_workers=2, collate_fn=stack)
    loader = Ahead(DataLoader(Bytes(320), shuffle=True, drop_last=True, persistent_workers=True, **settings), device)
    check = Ahead(DataLoader(Bytes(128), **settings), device)
    os.makedirs(args.output, exist_ok=True)
    inside = lambda name: os.path.join(args.output, name)
    best = None
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for i, (x, y) in enumerate(loader):
            x, y = mix(x, y)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            average.update(model)
            total += loss.item()
            for group in optimizer.param_groups:
                group["lr"] = 5e-4 * (1 + math.cos(math.pi * (epoch + i / len(loader)) / args.epochs))
        right = 0
        with torch.no_grad():
            for x, y in check:
                right += (average.module(x).argmax(1) == y).sum().item()
        row = {"epoch": epoch, "loss": total / len(loader), "right": right}
        first = not os.path.exists(inside("summary.csv"))
        with open(inside("summary.csv"), "a", newline="") as f:
            table = csv.DictWriter(f, row)
            if first:
                table.writeheader()
            table.writerow(row)
        torch.save({"model": model.state_dict(), "average": average.module.state_dict()}, inside("tmp.pt"))
        if os.path.exists(inside("last.pt")):
            os.unlink(inside("last.pt"))
        os.rename(inside("tmp.pt"), inside("last.pt"))
        if best is None or right > best:
            best = right
            if os.path.exists(inside("best.pt")):
                os.unlink(inside("best.pt"))
            os.link(inside("last.pt"), inside("best.pt"))
    print("right %d, rows %d" % (best, len(list(csv.DictReader(open(inside("summary.csv")))))))


if __name__ == "__main__":
    main()
