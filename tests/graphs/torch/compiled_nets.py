"""Models that are compared with what PyTorch's own partitioner keeps of them."""

import json
import sys

import torch
from torch import nn

SHAPES = {"decoder": (8, 64, 128), "gated": (8, 64, 128), "perceptron": (512, 256), "convolutions": (8, 3, 32, 32)}
WIDTH = 128


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.all, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = self.all(self.before(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        wide = x.float()
        normal = self.scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return x + self.down(nn.functional.silu(self.gate(normal)) * self.up(normal))


def decoder():
    return nn.Sequential(*[Attending() for _ in range(3)])


def gated():
    return nn.Sequential(*[Gated() for _ in range(3)])


def perceptron():
    inner = (nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512))
    return nn.Sequential(*inner, nn.Linear(512, 256))


def convolutions():
    each = [(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.SiLU()) for i, o in ((3, 16), (16, 32), (32, 64))]
    return nn.Sequential(*[module for layer in each for module in layer])


def compiled_perceptron():
    return torch.compile(perceptron(), mode="reduce-overhead")


def really_kept(name, *, compiled):
    """Return the bytes that autograd saves of a real step beside weights, buffers and the input."""
    torch._dynamo.reset()
    model, source = globals()[name](), torch.randn(SHAPES[name])
    model_storages = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers(), source)}
    run = torch.compile(model, backend="aot_eager_decomp_partition") if compiled else model
    run(source).mean().backward()
    saved = {}

    def note(tensor):
        if tensor.untyped_storage()._cdata not in model_storages:
            saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run(source).mean()
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


if __name__ == "__main__":
    kept_bytes = {name: [really_kept(name, compiled=compiled) for compiled in (False, True)] for name in SHAPES}
    sys.stdout.write(json.dumps(kept_bytes) + "\n")
