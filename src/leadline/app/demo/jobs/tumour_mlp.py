"""Train a multilayer perceptron on scikit-learn's breast cancer table, many passes over few rows."""

import argparse

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--hidden", type=int, default=1024)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    table = load_breast_cancer()
    rows = torch.tensor(StandardScaler().fit_transform(table.data), dtype=torch.float32)
    data = TensorDataset(rows, torch.tensor(table.target, dtype=torch.float32))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)

    model = nn.Sequential(
        nn.Linear(rows.shape[1], args.hidden),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(args.hidden, args.hidden),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(args.hidden, 1),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(args.epochs):
        total = 0.0
        for features, target in loader:
            features, target = features.to(device), target.to(device)
            optimizer.zero_grad()
            loss = criterion(model(features).squeeze(1), target)
            loss.backward()
            optimizer.step()
            total += loss.item()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
