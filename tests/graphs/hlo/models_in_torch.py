"""Small transformers and convolutional networks, written in PyTorch as in models_in_jax.py."""

import torch
from torch import nn

WIDTH, HEADS, LAYERS = 256, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        h = self.first(x)
        q, k, v = (
            part(h).reshape(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def transformer():
    return nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH, eps=1e-6))


class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        layers, before = [], 3
        for channels, stride in ((32, 1), (64, 2), (64, 1)):
            layers += [nn.Conv2d(before, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
            before = channels
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


def pixels():
    return Pixels()


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(192, eps=1e-6), nn.LayerNorm(192, eps=1e-6)
        self.qkv, self.out = nn.Linear(192, 576), nn.Linear(192, 192)
        self.gate, self.up, self.down = nn.Linear(192, 512), nn.Linear(192, 512), nn.Linear(512, 192)

    def forward(self, x, mask):
        q, k, v = (
            part.reshape(*part.shape[:2], 6, 32).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) * 32**-0.5
        scores = torch.softmax(torch.where(mask, scores, -1e9), -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(x.shape))
        h = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(2000, 192), nn.Parameter(torch.zeros(64, 192))
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(3))
        self.last, self.head = nn.LayerNorm(192, eps=1e-6), nn.Linear(192, 2000, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64, dtype=torch.bool)))

    def forward(self, tokens):
        x = self.embed(tokens) + self.positions
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(self.last(x))


def decoder():
    return Decoder()


def normed(before, channels, size, stride=1):
    return nn.Sequential(nn.Conv2d(before, channels, size, stride, size // 2, bias=False), nn.BatchNorm2d(channels))


class Bottleneck(nn.Module):
    def __init__(self, before, stride):
        super().__init__()
        self.around = normed(before, 128 * stride, 1, stride)
        self.first, self.second = normed(before, 32 * stride, 1), normed(32 * stride, 32 * stride, 3, stride)
        self.third = normed(32 * stride, 128 * stride, 1)

    def forward(self, x):
        h = nn.functional.relu(self.second(nn.functional.relu(self.first(x))))
        return nn.functional.relu(self.third(h) + self.around(x))


class Bottlenecks(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks, self.head = nn.Sequential(Bottleneck(64, 1), Bottleneck(128, 2)), nn.Linear(256, 100)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def bottlenecks():
    return Bottlenecks()


class DepthwiseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm = nn.Conv2d(48, 48, 7, padding=3, groups=48), nn.LayerNorm(48, eps=1e-6)
        self.up, self.down = nn.Linear(48, 192), nn.Linear(192, 48)

    def forward(self, x):
        h = self.norm(self.mix(x).permute(0, 2, 3, 1))
        return x + self.down(nn.functional.gelu(self.up(h))).permute(0, 3, 1, 2)


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 48, 4, 4), nn.LayerNorm(48, eps=1e-6)
        self.blocks = nn.Sequential(DepthwiseBlock(), DepthwiseBlock())
        self.last, self.head = nn.LayerNorm(48, eps=1e-6), nn.Linear(48, 10)

    def forward(self, x):
        x = self.blocks(self.first(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        return self.head(self.last(x.mean((2, 3))))


def depthwise():
    return Depthwise()
