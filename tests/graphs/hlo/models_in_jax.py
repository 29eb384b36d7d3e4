"""Small transformers and convolutional networks, written in flax as in models_in_torch.py."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

WIDTH, HEADS, LAYERS = 256, 4, 2


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        batch, length, _ = x.shape
        h = nn.LayerNorm()(x)
        q, k, v = (
            nn.Dense(WIDTH)(h).reshape(batch, length, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3) for _ in range(3)
        )
        scores = nn.softmax(q @ k.swapaxes(-1, -2) / (WIDTH // HEADS) ** 0.5)
        x = x + nn.Dense(WIDTH)((scores @ v).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH))
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)), approximate=False))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(LAYERS):
            x = Block()(x)
        return nn.LayerNorm()(x)


class Pixels(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = True):
        for channels, stride in ((32, 1), (64, 2), (64, 1)):
            x = nn.Conv(channels, (3, 3), (stride, stride), padding=1, use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        return nn.Dense(10)(x.mean((1, 2)))


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(2000, 192)(tokens) + self.param("positions", nn.initializers.zeros, (64, 192))
        mask = jnp.tril(jnp.ones((64, 64), bool))
        for _ in range(3):
            q, k, v = (
                part.reshape(*part.shape[:2], 6, 32).swapaxes(1, 2)
                for part in jnp.split(nn.Dense(576)(nn.LayerNorm()(x)), 3, -1)
            )
            scores = q @ k.swapaxes(-1, -2) * 32**-0.5
            scores = nn.softmax(jnp.where(mask, scores, -1e9))
            x = x + nn.Dense(192)((scores @ v).swapaxes(1, 2).reshape(x.shape))
            h = nn.LayerNorm()(x)
            x = x + nn.Dense(192)(nn.silu(nn.Dense(512)(h)) * nn.Dense(512)(h))
        return nn.Dense(2000, use_bias=False)(nn.LayerNorm()(x))


class Bottlenecks(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = True):
        def norm(h):
            return nn.BatchNorm(use_running_average=not train)(h)

        x = nn.relu(norm(nn.Conv(64, (7, 7), (2, 2), padding=3, use_bias=False)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        for stride in (1, 2):
            around = norm(nn.Conv(128 * stride, (1, 1), (stride, stride), use_bias=False)(x))
            h = nn.relu(norm(nn.Conv(32 * stride, (1, 1), use_bias=False)(x)))
            h = nn.relu(norm(nn.Conv(32 * stride, (3, 3), (stride, stride), padding=1, use_bias=False)(h)))
            x = nn.relu(norm(nn.Conv(128 * stride, (1, 1), use_bias=False)(h)) + around)
        return nn.Dense(100)(x.mean((1, 2)))


class Depthwise(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.Conv(48, (4, 4), (4, 4))(x))
        for _ in range(2):
            h = nn.LayerNorm()(nn.Conv(48, (7, 7), padding=3, feature_group_count=48)(x))
            x = x + nn.Dense(48)(nn.gelu(nn.Dense(192)(h), approximate=False))
        return nn.Dense(10)(nn.LayerNorm()(x.mean((1, 2))))


def transformer():
    return Transformer()


def decoder():
    return Decoder()


def bottlenecks():
    return Bottlenecks()


def depthwise():
    return Depthwise()


def pixels():
    return Pixels()


class Perceptron(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(64, 128, rngs=rngs), nnx.Linear(128, 32, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


def perceptron():
    return Perceptron(nnx.Rngs(0))


def scanned():
    """A step of one's own: a loop of five matrix products."""

    def step(weights, x):
        return jax.lax.scan(lambda carry, part: (jnp.tanh(carry @ part), None), x, weights)[0]

    return step, (jax.ShapeDtypeStruct((5, 64, 64), "float32"), jax.ShapeDtypeStruct((32, 64), "float32"))


def broken():
    return lambda x: x @ x, (jax.ShapeDtypeStruct((3, 4), "float32"),)


def nothing():
    return 3
