"""Keras 3 on PyTorch: fit with a validation split."""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import argparse

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=60)
args = parser.parse_args()

rng = np.random.default_rng(0)
x, y = rng.standard_normal((4000, 64)).astype("float32"), rng.integers(0, 10, 4000)
model = keras.Sequential([keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, batch_size=50, epochs=args.epochs, validation_split=0.2, verbose=0)
