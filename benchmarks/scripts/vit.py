# Vision transformer on the digits, gradient accumulation and EMA of the weights
import argparse
import copy
import os
import tempfile

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ViT(nn.Module):
    def __init__(self, patch=2, dim=64, depth=3, heads=4, classes=10):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.1, activation='gelu', batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        nn.init.trunc_normal_(self.cls, std=0.02)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.encoder(x))[:, 0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--epochs', type=int, default=10)
    ap.add_argument('--batch-size', type=int, default=32)
    ap.add_argument('--accum', type=int, default=4)
    ap.add_argument('--ema', type=float, default=0.999)
    args = ap.parse_args()
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    d = load_digits()
    xtr, xte, ytr, yte = train_test_split(d.images[:, None] / 16, d.target, test_size=0.2, random_state=0)
    train_ds = TensorDataset(torch.tensor(xtr, dtype=torch.float32), torch.tensor(ytr))
    test_ds = TensorDataset(torch.tensor(xte, dtype=torch.float32), torch.tensor(yte))
    train_dl = DataLoader(train_ds, batch_size=args.batch_size, shuffle=True, drop_last=True, pin_memory=torch.cuda.is_available())
    test_dl = DataLoader(test_ds, batch_size=256)

    model = ViT().to(device)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    total = args.epochs * (len(train_dl) // args.accum)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-4, total_steps=total + 1)
    loss_fn = nn.CrossEntropyLoss()
    out = tempfile.mkdtemp()

    for epoch in range(args.epochs):
        model.train()
        optimizer.zero_grad()
        for step, (x, y) in enumerate(train_dl):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = loss_fn(model(x), y) / args.accum
            loss.backward()
            if (step + 1) % args.accum == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for pe, p in zip(ema.parameters(), model.parameters()):
                        pe.mul_(args.ema).add_(p, alpha=1 - args.ema)
        ema.eval()
        right = 0
        with torch.no_grad():
            for x, y in test_dl:
                right += (ema(x.to(device)).argmax(-1).cpu() == y).sum().item()
        print(f'epoch {epoch} loss {loss.item() * args.accum:.4f} acc {right / len(test_ds):.4f} lr {scheduler.get_last_lr()[0]:.2e}')
        torch.save({'model': model.state_dict(), 'ema': ema.state_dict(), 'opt': optimizer.state_dict(), 'epoch': epoch},
                   os.path.join(out, 'last.pt'))


if __name__ == '__main__':
    main()
