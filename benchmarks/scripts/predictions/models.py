"""Models that the questions trace."""

import torch
from torch import nn
from torch.nn import functional as F


def perceptron():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


def pictures():
    layers, c = [], 3
    for k, stride in ((64, 2), (128, 2), (256, 2), (512, 2)):
        layers += [nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU(),
                   nn.Conv2d(k, k, 3, 1, 1, groups=k // 32), nn.GroupNorm(8, k), nn.SiLU()]
        c = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(5000, 128), nn.LSTM(128, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.layer(self.words(x))[0][:, -1])


def recurrent():
    return Recurrent()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.mix, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.second = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                    nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.mix(self.norm(x)).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, w))
        return x + self.second(x)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8000, 512)
        self.blocks = nn.Sequential(*(Block(512, 8) for _ in range(6)))
        self.head = nn.Linear(512, 8000, bias=False)

    def forward(self, x):
        return self.head(self.blocks(self.words(x)))


def decoder():
    return Decoder()
