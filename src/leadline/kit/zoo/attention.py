"""Transformers: for images, both ways, decoding with a cache, and with experts."""

from typing import Any, List, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES = 1000
Cache = List[Tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, batch x heads x positions x width of a head, allocated whole."""


class Attention(nn.Module):
    """Self-attention by torch's fused function; with a cache, the positions from ``at`` on are written to it."""

    def __init__(self, dim: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None, at: int = 0) -> Any:
        """Return batch x time x width."""
        batch, time, dim = x.shape
        q, k, v = self.project(x).view(batch, time, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[0][:, :, at : at + time], cache[1][:, :, at : at + time] = k, v
            k, v = cache[0][:, :, : at + time], cache[1][:, :, : at + time]
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal and time > 1)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, dim))


class Experts(nn.Module):
    """Perceptrons each of which takes the tokens it scores highest (expert choice, Zhou et al. 2022).

    Twice as many tokens are taken in all as there are, so that a token is seen by two experts on average.
    """

    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.experts = experts
        self.router = nn.Linear(dim, experts, bias=False)
        self.into = nn.Parameter(torch.empty(experts, dim, 4 * dim))
        self.out = nn.Parameter(torch.empty(experts, 4 * dim, dim))
        for weights in (self.into, self.out):
            nn.init.normal_(weights, std=weights.shape[1] ** -0.5)

    def forward(self, x: torch.Tensor) -> Any:
        """Return batch x time x width."""
        flat = x.reshape(-1, x.shape[-1])
        taken = min(len(flat), max(1, 2 * len(flat) // self.experts))
        weights, chosen = self.router(flat).softmax(-1).t().topk(taken)
        done = functional.gelu(flat[chosen] @ self.into) @ self.out * weights.unsqueeze(-1)
        zeros = torch.zeros_like(flat, dtype=done.dtype)
        return zeros.index_add(0, chosen.reshape(-1), done.reshape(-1, flat.shape[-1])).view(x.shape)


class Block(nn.Module):
    """Attention and a perceptron (or experts), each after a LayerNorm and added to its input."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False, experts: int = 0) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(dim), Attention(dim, heads, causal=causal)
        dense = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.between, self.feed = nn.LayerNorm(dim), Experts(dim, experts) if experts else dense

    def forward(self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None, at: int = 0) -> Any:
        """Return batch x time x width."""
        x = x + self.attention(self.before(x), cache, at)
        return x + self.feed(self.between(x))


class Stack(nn.Module):
    """Blocks and a last LayerNorm; with ``checkpointing`` each block is computed again in the backward pass."""

    checkpointing = False

    def __init__(self, layers: int, dim: int, heads: int, **more: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, heads, **more) for _ in range(layers))
        self.last = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor, cache: Optional[Cache] = None, at: int = 0) -> Any:
        """Return batch x time x width."""
        for number, block in enumerate(self.blocks):
            if self.checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, cache[number] if cache is not None else None, at)
        return self.last(x)


class Vision(nn.Module):
    """Patches of an image as tokens, and their mean as the answer (Dosovitskiy et al. 2021)."""

    def __init__(self, layers: int, dim: int, heads: int, patch: int, image: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2, dim) * 0.02)
        self.stack, self.head = Stack(layers, dim, heads), nn.Linear(dim, CLASSES)

    def forward(self, images: torch.Tensor) -> Any:
        """Return batch x classes."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.stack(tokens).mean(1))


class Language(nn.Module):
    """Tokens to logits; the head shares the embedding's weights."""

    def __init__(self, layers: int, dim: int, heads: int, vocabulary: int, positions: int, **more: Any) -> None:
        super().__init__()
        self.heads, self.layers, self.dim = heads, layers, dim
        self.embedding, self.places = nn.Embedding(vocabulary, dim), nn.Embedding(positions, dim)
        self.stack, self.head = Stack(layers, dim, heads, **more), nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, cache: Optional[Cache] = None, at: int = 0) -> Any:
        """Return the logits of every position; with a cache, of the last one alone."""
        places = torch.arange(at, at + tokens.shape[1], device=tokens.device)
        x = self.stack(self.embedding(tokens) + self.places(places), cache, at)
        return self.head(x if cache is None else x[:, -1:])

    def empty_cache(self, batch: int, positions: int, dtype: torch.dtype, device: torch.device) -> Cache:
        """Return room for the keys and values of ``positions`` tokens."""
        shape = (batch, self.heads, positions, self.dim // self.heads)
        return [
            (torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in range(self.layers)
        ]


def vit(layers: int, dim: int, heads: int, patch: int = 16, image: int = 224) -> nn.Module:
    """Return a vision transformer."""
    return Vision(layers, dim, heads, patch, image)


def bert(layers: int, dim: int, heads: int, positions: int, vocabulary: int = 30522) -> nn.Module:
    """Return an encoder that predicts every token."""
    return Language(layers, dim, heads, vocabulary, positions)


def gpt(layers: int, dim: int, heads: int, positions: int, vocabulary: int = 50304) -> nn.Module:
    """Return a decoder."""
    return Language(layers, dim, heads, vocabulary, positions, causal=True)


def moe(layers: int, dim: int, heads: int, experts: int, positions: int, vocabulary: int = 30522) -> nn.Module:
    """Return an encoder whose perceptrons are experts."""
    return Language(layers, dim, heads, vocabulary, positions, experts=experts)
