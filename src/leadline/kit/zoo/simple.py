"""A plain perceptron and a recurrent language model."""

from typing import Any, List

import torch
from torch import nn

CLASSES = 1000


def mlp(features: int, width: int, layers: int) -> nn.Module:
    """Return linear layers with ReLU between: batch x features → batch x classes."""
    parts: List[nn.Module] = []
    for number in range(layers):
        parts += [nn.Linear(width if number else features, width), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, nn.Linear(width, CLASSES))


class LSTM(nn.Module):
    """A language model of stacked LSTM layers: batch x time → batch x time x vocabulary."""

    def __init__(self, width: int, layers: int, vocabulary: int = 10000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.recurrent(self.embedding(tokens))[0])
