"""A quantised network with a straight-through autograd function and activation checkpointing."""
import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, IterableDataset


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return torch.round(x * scale) / scale

    @staticmethod
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        inside = (x.abs() <= 1).to(grad_output.dtype)
        return grad_output * inside, (grad_output * x).sum().view_as(scale)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        result = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        i, = ctx.saved_tensors
        s = torch.sigmoid(i)
        return grad_output * (s * (1 + i * (1 - s)))


class QuantLinear(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o)
        self.scale = nn.Parameter(torch.tensor(16.0))

    def forward(self, x):
        return nn.functional.linear(x, RoundSTE.apply(self.weight, self.scale), self.bias)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = QuantLinear(dim, 4 * dim), QuantLinear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(Swish.apply(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, dim=96, depth=6, use_checkpoint=True):
        super().__init__()
        self.stem = nn.Linear(20, dim)
        self.first = nn.ModuleList(Block(dim) for _ in range(depth // 2))
        self.rest = nn.Sequential(*[Block(dim) for _ in range(depth // 2)])
        self.head = nn.Linear(dim, 1)
        self.use_checkpoint = use_checkpoint

    def forward(self, x):
        x = self.stem(x)
        for block in self.first:
            x = checkpoint(block, x, use_reentrant=False) if self.use_checkpoint and self.training else block(x)
        x = checkpoint_sequential(self.rest, 3, x, use_reentrant=False)
        return self.head(x)


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        for _ in range(self.n):
            x = torch.randn(20, generator=g)
            yield x.numpy(), x[:3].prod().item()


if __name__ == '__main__':
    ap = argparse.ArgumentParser()
    ap.add_argument('--max-steps', type=int, default=60)
    ap.add_argument('--batch-size', type=int, default=128)
    args = ap.parse_args()
    dev = 'cuda' if torch.cuda.is_available() else 'cpu'
    net = Net().to(dev)
    opt = torch.optim.Adagrad(net.parameters(), lr=1e-2)
    step = 0
    while step < args.max_steps:
        for x, y in DataLoader(Stream(4096), batch_size=args.batch_size):
            x, y = x.to(dev), y.float().to(dev)
            loss = nn.functional.huber_loss(net(x).flatten(), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 10 == 0:
                print("step %d/%d loss %f" % (step, args.max_steps, loss))
            if step >= args.max_steps:
                break
