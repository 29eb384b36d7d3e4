"""The kit's models with the loss that they are trained with, as a trace and a real step run them."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

from leadline.kit.specs import SPECS
from leadline.kit.zoo import build


class WithLoss(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A model whose output, when it is trained, is the cross entropy of each class, pixel or next token."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__()
        self.model, self.kind, self.family = build(name, size), SPECS[name].kind, SPECS[name].family

    def forward(self, batch: torch.Tensor) -> object:
        """Return an object with a ``loss`` in training, and the model's own output in inference."""
        out = self.model(batch)
        if not self.training:
            return out
        if self.kind == "tokens":
            return SimpleNamespace(loss=functional.cross_entropy(out.flatten(0, 1), batch.flatten()))
        pixels = batch.shape[2:] if self.family == "unet" else ()
        classes = torch.zeros(batch.shape[0], *pixels, dtype=torch.int64, device=batch.device)
        return SimpleNamespace(loss=functional.cross_entropy(out, classes))

    def gradient_checkpointing_enable(self) -> None:
        """Recompute each block's activations in the backward pass."""
        self.model.stack.checkpointing = True


def with_loss(name: str, size: int) -> nn.Module:
    """Return the kit's model of that name for inputs of that size, with its loss."""
    return WithLoss(name, size)
