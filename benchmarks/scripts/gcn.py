"""Graph convolution and attention by scatter on a citation-like graph; full batch."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Adam


def make_graph(n=600, classes=5, features=96, seed=13):
    rng = np.random.RandomState(seed)
    labels = rng.randint(0, classes, n)
    src = rng.randint(0, n, 6 * n)
    dst = np.where(rng.rand(6 * n) < 0.7, rng.permutation(np.argsort(labels, kind="stable"))[src % n], rng.randint(0, n, 6 * n))
    x = rng.rand(n, features) < (0.05 + 0.3 * (np.arange(features)[None] % classes == labels[:, None]))
    x = x / np.maximum(x.sum(1, keepdims=True), 1)
    return torch.FloatTensor(x), torch.LongTensor(labels), torch.LongTensor(np.stack([src, dst]))


class GraphConv(nn.Module):
    def __init__(self, i, o, bias=True):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(i, o))
        self.bias = nn.Parameter(torch.zeros(o)) if bias else None
        nn.init.xavier_normal_(self.kernel, gain=1.414)

    def forward(self, x, edges):
        src, dst = edges
        h = torch.mm(x, self.kernel)
        degree = torch.zeros(x.size(0), device=x.device).index_add_(0, dst, torch.ones_like(dst, dtype=x.dtype))
        out = torch.zeros_like(h).index_add_(0, dst, h[src] / degree.clamp(min=1)[dst].unsqueeze(-1))
        return out + self.bias if self.bias is not None else out


class GraphAttention(nn.Module):
    def __init__(self, i, o, heads=4):
        super().__init__()
        self.w = nn.Linear(i, heads * o, bias=False)
        self.a = nn.Parameter(torch.randn(2, heads, o) * 0.1)
        self.heads, self.o = heads, o

    def forward(self, x, edges):
        src, dst = edges
        h = self.w(x).view(-1, self.heads, self.o)
        e = F.leaky_relu((h[src] * self.a[0]).sum(-1) + (h[dst] * self.a[1]).sum(-1), 0.2)
        top = torch.full((x.size(0), self.heads), float('-inf'), device=x.device)
        top = top.scatter_reduce(0, dst.unsqueeze(-1).expand_as(e), e, reduce='amax')
        weight = torch.exp(e - top[dst])
        total = torch.zeros(x.size(0), self.heads, device=x.device).scatter_add(0, dst.unsqueeze(-1).expand_as(weight), weight)
        weight = weight / (total[dst] + 1e-9)
        out = torch.zeros_like(h).index_add(0, dst, h[src] * weight.unsqueeze(-1))
        return out.flatten(1)


class Net(nn.Module):
    def __init__(self, i, hidden, classes):
        super().__init__()
        self.gc1 = GraphConv(i, hidden)
        self.att = GraphAttention(hidden, hidden // 4)
        self.gc2 = GraphConv(hidden, classes)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, edges):
        x = self.dropout(F.relu(self.gc1(x, edges)))
        x = self.dropout(F.elu(self.att(x, edges)))
        return F.log_softmax(self.gc2(x, edges), dim=1)


def train_iter(epoch, model, optimizer, criterion, x, edges, target, mask_train, mask_val, print_every):
    start_t = time.time()
    model.train()
    optimizer.zero_grad()
    output = model(x, edges)
    loss = criterion(output[mask_train], target[mask_train])
    loss.backward()
    optimizer.step()
    loss_train, acc_train = test(model, criterion, x, edges, target, mask_train)
    loss_val, acc_val = test(model, criterion, x, edges, target, mask_val)
    if epoch % print_every == 0:
        print(f'Epoch: {epoch:04d} ({(time.time() - start_t):.4f}s) loss_train: {loss_train:.4f} acc_train: {acc_train:.4f} '
              f'loss_val: {loss_val:.4f} acc_val: {acc_val:.4f}')


def test(model, criterion, x, edges, target, mask):
    model.eval()
    with torch.no_grad():
        output = model(x, edges)
        output, target = output[mask], target[mask]
        loss = criterion(output, target)
        acc = (output.argmax(dim=1) == target).float().sum() / len(target)
    return loss.item(), acc.item()


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=60)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--hidden-dim', type=int, default=32)
    parser.add_argument('--val-every', type=int, default=20)
    parser.add_argument('--no-cuda', action='store_true')
    args = parser.parse_args()
    device = torch.device('cuda' if not args.no_cuda and torch.cuda.is_available() else 'cpu')
    features, labels, edges = (t.to(device) for t in make_graph())
    idx = torch.randperm(len(labels)).to(device)
    idx_test, idx_val, idx_train = idx[:200], idx[200:400], idx[400:]
    model = Net(features.shape[1], args.hidden_dim, int(labels.max().item()) + 1).to(device)
    optimizer = Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)
    criterion = nn.NLLLoss()
    for epoch in range(args.epochs):
        train_iter(epoch + 1, model, optimizer, criterion, features, edges, labels, idx_train, idx_val, args.val_every)
    loss_test, acc_test = test(model, criterion, features, edges, labels, idx_test)
    print(f'Test set results: loss {loss_test:.4f} accuracy {acc_test:.4f}')
