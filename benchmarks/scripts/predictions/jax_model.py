"""A flax model that the questions lower."""

import jax.numpy as jnp
from flax import linen as nn


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(128)(nn.relu(nn.Dense(1024)(nn.LayerNorm()(nn.Dense(512)(x)))))


def perceptron():
    return Perceptron()
