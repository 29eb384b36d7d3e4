"""A decoder of Llama-2-7B's shape as a plain PyTorch module (sizes from its published config)."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LAYERS, HEADS, HIDDEN = 32000, 4096, 32, 32, 11008


def build():
    """Return the model; its input is a batch of token numbers."""
    return Decoder()


class Decoder(nn.Module):
    """Embedding, layers, output projection."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        place = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        rate = 10000 ** (-torch.arange(0, WIDTH // HEADS, 2, device=tokens.device) / (WIDTH // HEADS))
        angle = torch.outer(place, rate).repeat(1, 2)
        for layer in self.layers:
            hidden = layer(hidden, angle.cos().to(hidden.dtype), angle.sin().to(hidden.dtype))
        return self.head(self.norm(hidden))


class Layer(nn.Module):
    """Attention with rotary positions, then a gated MLP."""

    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        normed = self.before_attention(x)
        query, key, value = (
            project(normed).view(batch, length, HEADS, -1).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        normed = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def rotate(x, cos, sin):
    """Apply rotary position embedding."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
