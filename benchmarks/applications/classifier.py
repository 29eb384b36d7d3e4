"""Train a fully connected image classifier (PyTorch) on images of the shape of MNIST or CIFAR-10."""

import argparse
import time
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


def images(dataset, count, seed):
    """Make images whose class shows in their brightness, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    pixels = torch.randn(count, *SHAPES[dataset], generator=generator)
    return TensorDataset(pixels + labels.view(-1, 1, 1, 1) / 10, labels)


def network(dataset, layers, neurons):
    channels, height, width = SHAPES[dataset]
    sizes = [channels * height * width] + [neurons] * layers
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], 10))


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", choices=SHAPES, default="mnist")
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--neurons", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="adam")
    args = parser.parse_args()

    torch.manual_seed(0)
    train = DataLoader(images(args.dataset, args.samples, 0), batch_size=args.batch_size, shuffle=True)
    test = DataLoader(images(args.dataset, args.samples // 6, 1), batch_size=1000)
    model = network(args.dataset, args.layers, args.neurons)
    if args.optimizer == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        began = time.time()
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model, test)
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.3f}, {time.time() - began:.1f} s")


if __name__ == "__main__":
    main()
