"""The station's classifier: a small convolutional network, and its file."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scenes import CLASSES
from station import replace_file
from torch import nn
from torch.nn import functional

BATCH = 64
"""Images of one step of the training."""


class Network(nn.Module):
    """Three convolutions and a linear layer: images of 48×48 pixels to a score for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1), nn.GroupNorm(4, 48), nn.ReLU(),
        )  # fmt: skip
        self.classify = nn.Linear(96, len(CLASSES))

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Return 96 numbers an image: the mean and the maximum of each feature."""
        features = self.features(images)
        return torch.cat((features.mean((2, 3)), features.amax((2, 3))), 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores, shape (images, classes)."""
        return self.classify(self.embed(images))


@dataclass
class Model:
    """A trained network with the facts about it.

    Attributes:
        center: Mean embedding of its training images, shape (96,).
        spread: Standard deviation of the same, shape (96,).
        metrics: Images, seconds, loss; later its accuracy.
    """

    name: str
    network: Network
    center: np.ndarray
    spread: np.ndarray
    metrics: dict[str, float]

    @torch.no_grad()
    def predict(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the probability of each class, shape (n, 6), and the distance from the training images, shape (n,)."""
        self.network.eval()
        embedding = self.network.embed(_as_tensor(pixels))
        distance = np.abs((embedding.numpy() - self.center) / self.spread).mean(1)
        return functional.softmax(self.network.classify(embedding), 1).numpy(), distance

    def accuracy(self, pixels: np.ndarray, labels: np.ndarray) -> float:
        """Return the share of images, shape (n, 48, 48, 3), whose most probable class is the label, shape (n,)."""
        return float((self.predict(pixels)[0].argmax(1) == labels).mean())

    def save(self, path: Path) -> None:
        """Write the model atomically."""
        file = io.BytesIO()
        arrays = {"center": torch.from_numpy(self.center), "spread": torch.from_numpy(self.spread)}
        torch.save({"name": self.name, "weights": self.network.state_dict(), "metrics": self.metrics, **arrays}, file)
        replace_file(path, file.getvalue())

    @classmethod
    def load(cls, file: Path | io.BytesIO) -> "Model":
        """Read a model's file."""
        content = torch.load(file, weights_only=True)
        network = Network()
        network.load_state_dict(content["weights"])
        return cls(content["name"], network, content["center"].numpy(), content["spread"].numpy(), content["metrics"])


def fit(
    pixels: np.ndarray, labels: np.ndarray, weights: np.ndarray, *, passes: int, name: str, start: Model | None = None
) -> Model:
    """Train a model, from the start's weights if there is one, on the threads that torch has.

    Args:
        pixels: uint8, shape (n, 48, 48, 3).
        labels: Class numbers, shape (n,).
        weights: How often each image is drawn, shape (n,).
        passes: Each draws as many images as there are.
        name: Of the new model.
        start: Whose weights to begin with; None for random ones.
    """
    torch.manual_seed(0)
    network = Network()
    if start is not None:
        network.load_state_dict(start.network.state_dict())
    images, classes, share = _as_tensor(pixels), torch.from_numpy(labels), torch.from_numpy(weights)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    rate = 6e-3 if start is None else 4e-3
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=passes * -(-len(images) // BATCH))
    losses: list[float] = []
    for _ in range(passes):
        for batch in torch.multinomial(share, len(images), replacement=True).split(BATCH):
            views = images[batch]
            views = torch.where(torch.rand(len(batch), 1, 1, 1) < 0.5, views.flip(3), views)
            views = views * (0.8 + 0.4 * torch.rand(len(batch), 1, 1, 1)) + 0.1 * torch.randn(len(batch), 3, 1, 1)
            loss = functional.cross_entropy(network(views), classes[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    with torch.no_grad():
        embedding = network.embed(images[torch.multinomial(share, 600, replacement=True)]).numpy()
    metrics = {"images": float(len(images)), "loss": float(np.mean(losses[-20:]))}
    return Model(name, network, embedding.mean(0), embedding.std(0) + 0.05, metrics)


def _as_tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float() / 255 - 0.5
