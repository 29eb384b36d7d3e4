"""Convolutional networks: residual, plain, depthwise separable, ConvNeXt-like, and U-shaped."""

from typing import Any, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional

CLASSES = 1000


def _conv(into: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> List[nn.Module]:
    return [nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(out)]


class Residual(nn.Module):
    """A branch added to its input, which is projected where the shapes differ; ReLU after the sum (He et al. 2016)."""

    def __init__(self, into: int, out: int, inner: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        relu = nn.ReLU(inplace=True)
        if bottleneck:
            layers = [*_conv(into, inner, 1), relu, *_conv(inner, inner, 3, stride), relu, *_conv(inner, out, 1)]
        else:
            layers = [*_conv(into, inner, 3, stride), relu, *_conv(inner, out, 3)]
        self.branch = nn.Sequential(*layers)
        self.shortcut = nn.Identity() if into == out and stride == 1 else nn.Sequential(*_conv(into, out, 1, stride))
        self.relu = relu

    def forward(self, x: torch.Tensor) -> Any:
        return self.relu(self.branch(x) + self.shortcut(x))


def resnet(blocks: Sequence[int], *, bottleneck: bool = False, width: int = 64, inner: int = 0) -> nn.Module:
    """Return a residual network; ``inner`` is the width within the first stage's bottlenecks, ``width`` by default."""
    layers: List[nn.Module] = [*_conv(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    into = width
    for stage, count in enumerate(blocks):
        within = (inner or width) * 2**stage
        out = width * 2**stage * (4 if bottleneck else 1)
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(Residual(into, out, within if bottleneck else out, stride, bottleneck=bottleneck))
            into = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, CLASSES))


def vgg(stages: Sequence[Tuple[int, int]], hidden: int = 4096) -> nn.Module:
    """Return stages of plain convolutions, each halved by pooling, and three linear layers."""
    layers: List[nn.Module] = []
    into = 3
    for count, width in stages:
        for _ in range(count):
            layers += [*_conv(into, width), nn.ReLU(inplace=True)]
            into = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7 if hidden > 1000 else 2), nn.Flatten()]
    features = into * (49 if hidden > 1000 else 4)
    for inputs in (features, hidden):
        layers += [nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(hidden, CLASSES))


class Inverted(nn.Module):
    """Expand, convolve each channel alone, weigh the channels (squeeze and excite), project (Howard et al. 2019)."""

    def __init__(self, into: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide, squeezed = into * 4, max(8, into // 4 * 4)
        act = nn.Hardswish(inplace=True)
        self.expand = nn.Sequential(*_conv(into, wide, 1), act, *_conv(wide, wide, kernel, stride, wide), act)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, squeezed, 1), nn.ReLU(inplace=True),
                                  nn.Conv2d(squeezed, wide, 1), nn.Hardsigmoid(inplace=True))  # fmt: skip
        self.project = nn.Sequential(*_conv(wide, out, 1))
        self.same = into == out and stride == 1

    def forward(self, x: torch.Tensor) -> Any:
        wide = self.expand(x)
        out = self.project(wide * self.gate(wide))
        return x + out if self.same else out


def mobilenet(width: float, depth: int) -> nn.Module:
    """Return a network of inverted residuals; ``depth`` blocks a stage, channels times ``width``."""
    channels = [max(8, int(base * width) // 8 * 8) for base in (16, 24, 40, 80, 112, 160)]
    act = nn.Hardswish(inplace=True)
    layers: List[nn.Module] = [*_conv(3, channels[0], 3, 2), act]
    for stage, (into, out) in enumerate(zip(channels, channels[1:])):
        for number in range(depth):
            stride = 2 if stage != 3 and not number else 1
            layers.append(Inverted(out if number else into, out, 5 if stage > 1 else 3, stride))
    last = channels[-1] * 6
    layers += [*_conv(channels[-1], last, 1), act, nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(last, CLASSES))


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of an image."""

    def forward(self, x: torch.Tensor) -> Any:
        """Return the image, normalised at each pixel."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """A 7 x 7 depthwise convolution, LayerNorm, and a perceptron over the channels, scaled (Liu et al. 2022)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.rest = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.scale = nn.Parameter(torch.full((dim,), 1e-6))

    def forward(self, x: torch.Tensor) -> Any:
        return x + (self.scale * self.rest(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def convnext(depths: Sequence[int], dims: Sequence[int]) -> nn.Module:
    """Return stages of ConvNeXt-like blocks, each after a strided convolution."""
    layers: List[nn.Module] = [nn.Conv2d(3, dims[0], 4, 4), ChannelNorm(dims[0])]
    for stage, (depth, dim) in enumerate(zip(depths, dims)):
        if stage:
            layers += [ChannelNorm(dims[stage - 1]), nn.Conv2d(dims[stage - 1], dim, 2, 2)]
        layers += [ConvNextBlock(dim) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(dims[-1]),
                         nn.Linear(dims[-1], CLASSES))  # fmt: skip


class UNet(nn.Module):
    """Down and up with the maps of each level joined (Ronneberger et al. 2015); sides: multiples of 2^(levels - 1)."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(self._double(into, out) for into, out in zip([3, *widths], widths))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * out, out, 2, 2) for out in reversed(widths[:-1]))
        self.up = nn.ModuleList(self._double(2 * out, out) for out in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 21, 1)

    def forward(self, x: torch.Tensor) -> Any:
        """Return batch x 21 x height x width."""
        skips = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for rise, block, across in zip(self.rise, self.up, reversed(skips[:-1])):
            x = block(torch.cat([rise(x), across], 1))
        return self.head(x)

    @staticmethod
    def _double(into: int, out: int) -> nn.Module:
        relu = nn.ReLU(inplace=True)
        return nn.Sequential(*_conv(into, out), relu, *_conv(out, out), relu)
