"""Attention within windows of an image, shifted from block to block (Liu et al. 2021)."""

from typing import Any, List, Sequence

import torch
from torch import nn
from torch.nn import functional

CLASSES = 1000


class WindowBlock(nn.Module):
    """Attention within windows with a bias for each relative position, and a perceptron; batch x side x side x width.

    A shifted block rolls the image by half a window; what the roll brings together from opposite edges is masked.
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
        """Return 0 or -100 for each window and pair of its tokens: -100 where they were no neighbours."""
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
    """Stages of window blocks, the image halved between them."""

    def __init__(self, depths: Sequence[int], dim: int, window: int, image: int) -> None:
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
        """Return batch x classes."""
        x = self.layers(self.patches(images).permute(0, 2, 3, 1).contiguous())
        return self.head(self.norm(x).mean((1, 2)))


def swin(depths: Sequence[int], dim: int, window: int = 7, image: int = 224) -> nn.Module:
    """Return a transformer of shifted windows; the side of every stage must be a multiple of the window."""
    return Swin(depths, dim, window, image)
