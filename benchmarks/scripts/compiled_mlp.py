"""torch.compile on a residual MLP over the diabetes data, early stopping on a validation split."""
import argparse

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--patience", type=int, default=10)
parser.add_argument("--backend", default="inductor")
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")
X, y = load_diabetes(return_X_y=True)
y = (y - y.mean()) / y.std()
data = TensorDataset(torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32))
train, val = random_split(data, [0.8, 0.2])
train_dl = DataLoader(train, batch_size=args.batch_size, shuffle=True)
val_dl = DataLoader(val, batch_size=256)


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(d, d))

    def forward(self, x):
        return x + self.net(x)


model = nn.Sequential(nn.Linear(10, 128), *[Residual(128) for _ in range(4)], nn.LayerNorm(128), nn.Linear(128, 1)).to(device)
model = torch.compile(model, backend=args.backend)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


@torch.compile(backend=args.backend)
def mse(a, b):
    return ((a - b) ** 2).mean()


best, waited = float("inf"), 0
for epoch in range(args.epochs):
    model.train()
    for xb, yb in train_dl:
        xb, yb = xb.to(device), yb.to(device)
        loss = mse(model(xb).squeeze(-1), yb)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_loss = sum(mse(model(xb.to(device)).squeeze(-1), yb.to(device)).item() * len(xb) for xb, yb in val_dl) / len(val)
    print(f"epoch {epoch:3d}  train {loss.item():.4f}  val {val_loss:.4f}")
    if val_loss < best:
        best, waited = val_loss, 0
    else:
        waited += 1
        if waited > args.patience:
            print("early stop")
            break
