"""Transformers: vision, encoder, decoder with KV cache, mixture of experts, and shifted windows."""

from functools import partial
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES = 1000
Cache = List[Tuple[torch.Tensor, torch.Tensor]]
"""Preallocated keys and values of each layer: batch x heads x positions x width of a head."""


class Attention(nn.Module):
    """Self-attention by torch's fused function; with a cache, writes the positions from ``at`` on.

    Input and output are batch x time x width, here and in the other blocks.
    """

    def __init__(self, dim: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None, at: int = 0) -> Any:
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
        x = x + self.attention(self.before(x), cache, at)
        return x + self.feed(self.between(x))


class Stack(nn.Module):
    """Blocks and a final LayerNorm; ``checkpointing`` recomputes each block in the backward pass."""

    checkpointing = False

    def __init__(self, layers: int, dim: int, heads: int, **more: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, heads, **more) for _ in range(layers))
        self.last = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor, cache: Optional[Cache] = None, at: int = 0) -> Any:
        for number, block in enumerate(self.blocks):
            if self.checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, cache[number] if cache is not None else None, at)
        return self.last(x)


class Vision(nn.Module):
    """Patches of an image as tokens, and their mean as the answer (Dosovitskiy et al. 2021)."""

    def __init__(self, layers: int, dim: int, heads: int, patch: int = 16, image: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2, dim) * 0.02)
        self.stack, self.head = Stack(layers, dim, heads), nn.Linear(dim, CLASSES)

    def forward(self, images: torch.Tensor) -> Any:
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
        """Return an empty cache of ``positions`` tokens."""
        shape = (batch, self.heads, positions, self.dim // self.heads)
        return [
            (torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in range(self.layers)
        ]


bert = partial(Language, vocabulary=30522)
"""An encoder that predicts every token; with ``experts``, the perceptrons are experts."""
gpt = partial(Language, vocabulary=50304, causal=True)


class WindowBlock(nn.Module):
    """Attention within windows with relative position bias, and a perceptron (Liu et al. 2021).

    Tensors are batch x side x side x width. A shifted block rolls the image by half a window and masks pairs from
    opposite edges.
    """

    def __init__(self, dim: int, heads: int, side: int, window: int, *, shifted: bool) -> None:
        super().__init__()
        self.heads, self.side, self.window = heads, side, window
        self.shift = window // 2 if shifted and side > window else 0
        self.before, self.project, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        self.register_buffer("places", self._places())
        self.register_buffer("mask", self._mask())

    def forward(self, x: torch.Tensor) -> Any:
        """Return batch x side x side x width."""
        x = x + self._attend(self.before(x))
        return x + self.feed(x)

    def _attend(self, x: torch.Tensor) -> Any:
        batch, dim = x.shape[0], x.shape[-1]
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        tokens = self._split(x)
        q, k, v = self.project(tokens).view(*tokens.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        area = self.window**2
        bias = self.bias[self.places].view(area, area, self.heads).permute(2, 0, 1)
        bias = (bias + self.mask.to(bias.dtype).unsqueeze(1)).repeat(batch, 1, 1, 1).to(q.dtype)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        mixed = self.out(mixed.transpose(1, 2).reshape(tokens.shape))
        count, window = self.side // self.window, self.window
        whole = mixed.view(batch, count, count, window, window, dim).transpose(2, 3).reshape(x.shape)
        return torch.roll(whole, (self.shift, self.shift), (1, 2)) if self.shift else whole

    def _split(self, x: torch.Tensor) -> Any:
        """Return windows x tokens of a window x width."""
        batch, count, window = x.shape[0], self.side // self.window, self.window
        parts = x.view(batch, count, window, count, window, x.shape[-1]).transpose(2, 3)
        return parts.reshape(batch * count * count, window * window, x.shape[-1])

    def _places(self) -> Any:
        """Return the row of ``bias`` for each pair of tokens of a window, flat."""
        line = torch.arange(self.window)
        row, column = line.repeat_interleave(self.window), line.repeat(self.window)
        down = row[:, None] - row[None] + self.window - 1
        across = column[:, None] - column[None] + self.window - 1
        return (down * (2 * self.window - 1) + across).reshape(-1)

    def _mask(self) -> Any:
        """Return 0 or -100 for each window and pair of its tokens: -100 if they are not neighbors."""
        region = torch.zeros(self.side)
        if self.shift:
            region[-self.window : -self.shift], region[-self.shift :] = 1, 2
        regions = (region[:, None] * 3 + region[None]).view(1, self.side, self.side, 1)
        tokens = self._split(regions).squeeze(-1)
        return (tokens[:, :, None] != tokens[:, None]).float() * -100


class Merge(nn.Module):
    """Join each 2 x 2 pixels into one of twice the width."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        """Return batch x side/2 x side/2 x 2 width."""
        parts = [x[:, down::2, across::2] for across in (0, 1) for down in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    """Stages of window blocks, the image halved between them; the side of every stage is a multiple of the window."""

    def __init__(self, depths: Sequence[int], dim: int, window: int = 7, image: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 4, 4)
        layers: List[nn.Module] = []
        side = image // 4
        for stage, depth in enumerate(depths):
            if stage:
                layers.append(Merge(dim))
                dim, side = 2 * dim, side // 2
            layers += [WindowBlock(dim, dim // 32, side, window, shifted=bool(at % 2)) for at in range(depth)]
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.layers(self.patches(images).permute(0, 2, 3, 1).contiguous())
        return self.head(self.norm(x).mean((1, 2)))
