"""Mixture of experts with top-k routing by masks; a toy sequence-copy task."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(a, b, bias=False) for a, b in ((dim, hidden), (hidden, dim), (dim, hidden)))

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MoE(nn.Module):
    def __init__(self, dim, hidden, experts=4, k=2):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList([Expert(dim, hidden) for _ in range(experts)])
        self.k = k

    def forward(self, x):
        flat = x.view(-1, x.shape[-1])
        probs = F.softmax(self.gate(flat), dim=-1, dtype=torch.float)
        weights, chosen = torch.topk(probs, self.k, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(flat[token]) * weights[token, slot, None])
        load = F.one_hot(chosen, len(self.experts)).float().mean((0, 1))
        return out.view_as(x), (load * probs.mean(0)).sum() * len(self.experts)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = RMSNorm(dim), RMSNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.moe = MoE(dim, 2 * dim)

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        y, aux = self.moe(self.n2(x))
        return x + y, aux


class Model(nn.Module):
    def __init__(self, vocab=64, dim=64, layers=2, heads=4, block=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(block, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.out = nn.Linear(dim, vocab, bias=False)
        self.register_buffer('mask', torch.triu(torch.ones(block, block, dtype=torch.bool), 1))

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=idx.device))
        aux = 0
        for layer in self.layers:
            x, a = layer(x, self.mask[:idx.shape[1], :idx.shape[1]])
            aux = aux + a
        return self.out(x), aux


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--steps', type=int, default=100)
    ap.add_argument('--batch', type=int, default=16)
    args = ap.parse_args()
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    model = Model().to(device)
    n_params = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f'{n_params:,} parameters on {next(model.parameters()).device}')
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(args.steps):
        half = torch.randint(2, 64, (args.batch, 16), device=device)
        seq = torch.cat([half, half], 1)
        logits, aux = model(seq[:, :-1])
        targets = seq[:, 1:].clone()
        targets[:, :15] = -100
        keep = targets != -100
        ce = F.cross_entropy(logits[keep], targets[keep])
        loss = ce + 0.01 * aux
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            wrong = (logits.argmax(-1) != targets)[keep].nonzero().size(0)
            print(f'{step}: ce {ce.item():.3f} aux {aux:.3f} wrong {wrong}')


if __name__ == '__main__':
    main()
