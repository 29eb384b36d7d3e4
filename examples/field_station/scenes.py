"""Camera-trap images without a camera: one season at a few traps, drawn with numpy.

Every image follows from the season's seed and the image's number, so the true label never has to be stored beside it.
Number 0 is the first image of the season. Negative numbers are the archive, photographed before the season began.
"""

import argparse
import io
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from PIL import Image

CLASSES = ("empty", "deer", "boar", "fox", "hare", "badger")
SIZE = 48
"""Height and width of an image in pixels."""
IMAGE_ID = 0xA420
"""The EXIF tag ImageUniqueID."""
DAY_SHARE = 0.6
EMPTY_SHARE = 0.56
RAMP = 0.02
"""Length of a change as a share of the season: snow falls within days."""
ROWS, COLUMNS = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)

COATS = {
    "deer": ((0.50, 0.34, 0.20), (0.38, 0.32, 0.28)),
    "boar": ((0.24, 0.19, 0.16), (0.30, 0.27, 0.25)),
    "fox": ((0.72, 0.36, 0.12), (0.62, 0.50, 0.40)),
    "hare": ((0.46, 0.38, 0.28), (0.88, 0.88, 0.90)),
    "badger": ((0.42, 0.42, 0.42), (0.55, 0.55, 0.55)),
}
"""Color of each animal in summer and in its winter coat, red, green, blue in 0..1."""
GROUNDS = ((0.26, 0.42, 0.17), (0.55, 0.36, 0.14), (0.84, 0.87, 0.92))
"""Color of the ground in green season, autumn and snow."""
SHARES = ((0.30, 0.15, 0.20, 0.20, 0.15), (0.15, 0.35, 0.15, 0.10, 0.25), (0.15, 0.10, 0.40, 0.30, 0.05))
"""Species among the images with an animal: in green season, in autumn and in snow."""


@dataclass(frozen=True)
class Scene:
    """One image and the truth about it.

    Attributes:
        image_id: Sorts by time; names the trap.
        at: Time as a share of the season.
        pixels: uint8, shape (48, 48, 3).
    """

    image_id: str
    trap: int
    at: float
    label: str
    pixels: np.ndarray

    def jpeg(self) -> bytes:
        """Return the file that a camera sends, with the image's id in its EXIF header."""
        exif = Image.Exif()
        exif[IMAGE_ID] = self.image_id
        file = io.BytesIO()
        Image.fromarray(self.pixels).save(file, "JPEG", quality=92, exif=exif)
        return file.getvalue()


def read_jpeg(content: bytes) -> tuple[str, np.ndarray]:
    """Return an image's id and pixels.

    Raises:
        OSError, SyntaxError, ValueError: If it is corrupt, of another size, or without an id.
    """
    with Image.open(io.BytesIO(content)) as image:
        pixels = np.asarray(image.convert("RGB"))
        if pixels.shape != (SIZE, SIZE, 3):
            raise ValueError(
                f"an image of {pixels.shape[1]}x{pixels.shape[0]} pixels: the station's have {SIZE}x{SIZE}"
            )
        image_id = str(image.getexif().get(IMAGE_ID, ""))
        if not image_id:
            raise ValueError("no image id in the EXIF header: the camera writes it to the tag ImageUniqueID")
        return image_id, pixels


def number_of(image_id: str) -> int:
    """Return the number in an image's id."""
    return int(image_id.split("-", maxsplit=1)[0]) - 100_000


@dataclass(frozen=True)
class Season:
    """A season of images.

    Attributes:
        strength: Of the drift: 0 is none, 1 is a whole change of season, light, species and sensor.
    """

    seed: int
    images: int = 6000
    strength: float = 1.0
    traps: int = 6

    @cached_property
    def changes(self) -> tuple[float, float, float]:
        """When leaves turn, the sensor fails and snow falls, each as a share of the season."""
        random = np.random.default_rng([self.seed, 7])
        return random.uniform(0.10, 0.30), random.uniform(0.38, 0.58), random.uniform(0.64, 0.84)

    def progress(self, at: float) -> tuple[float, float, float]:
        """Return how far autumn, the sensor's fault and snow have come, each in 0..strength."""
        autumn, fault, snow = (self.strength * float(np.clip((at - start) / RAMP, 0, 1)) for start in self.changes)
        return autumn, fault, snow

    def label(self, number: int) -> str:
        """Return what is on an image, without drawing it."""
        autumn, _, snow = self.progress(max(number / self.images, 0.0))
        seasons = np.array(((1 - autumn) * (1 - snow), autumn * (1 - snow), snow))
        random = np.random.default_rng([self.seed, 100_000 + number, 1])
        if random.random() < EMPTY_SHARE:
            return "empty"
        return str(random.choice(CLASSES[1:], p=seasons @ np.array(SHARES)))

    def scene(self, number: int) -> Scene:
        """Return an image of the season, or of the archive if its number is negative."""
        random = np.random.default_rng([self.seed, 100_000 + number])
        at, label = max(number / self.images, 0.0), self.label(number)
        autumn, fault, snow = self.progress(at)
        seasons = np.array(((1 - autumn) * (1 - snow), autumn * (1 - snow), snow))
        trap = int(random.integers(self.traps))
        day = random.random() < DAY_SHARE
        pixels = _ground(trap, seasons, random)
        if label != "empty":
            coat = np.array(COATS[label][0]) * (1 - snow) + np.array(COATS[label][1]) * snow
            pixels = _animal(pixels, label, coat, day, random)
        pixels = _cover(pixels, seasons, random)
        pixels = _expose(pixels, day, fault + 0.3 * self.strength * at, random)
        return Scene(f"{100_000 + number:06d}-trap{trap}", trap, at, label, (pixels * 255).astype(np.uint8))


def season_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a season."""
    parser.add_argument("--seed", type=int, default=1, help="of the season")
    parser.add_argument("--images", type=int, default=6000, help="in the season")
    parser.add_argument("--strength", type=float, default=1.0, help="of the drift, 0 to 1")


def season_of(options: argparse.Namespace) -> Season:
    """Return the season that the options name."""
    return Season(options.seed, options.images, options.strength)


@cache
def _view(trap: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the texture of a trap's view, shape (48, 48), about 1, and its trunks, shape (48, 48), in 0..1."""
    random = np.random.default_rng([4711, trap])
    texture = 1 + 0.25 * _clouds(random, 6) + 0.15 * _clouds(random, 16)
    trunks = np.zeros((SIZE, SIZE), np.float32)
    for _ in range(3):
        middle, width = random.uniform(2, SIZE - 2), random.uniform(1.0, 2.5)
        bend = 2 * np.sin(ROWS / random.uniform(8, 20))
        foot = random.uniform(20, 34)
        trunks = np.maximum(trunks, np.clip(width - np.abs(COLUMNS - middle - bend), 0, 1) * (foot > ROWS))
    return texture.astype(np.float32), trunks


def _clouds(random: np.random.Generator, cells: int) -> np.ndarray:
    """Return smooth noise of standard deviation about 0.5, shape (48, 48)."""
    grid = Image.fromarray(random.normal(0, 0.7, (cells, cells)).astype(np.float32))
    return np.asarray(grid.resize((SIZE, SIZE), Image.Resampling.BICUBIC))


def _ground(trap: int, seasons: np.ndarray, random: np.random.Generator) -> np.ndarray:
    texture, trunks = _view(trap)
    sky = np.clip(1 - ROWS / 18, 0, 1)[..., None] * 0.35
    ground = np.ones((SIZE, SIZE, 3), np.float32) * (seasons @ np.array(GROUNDS)).astype(np.float32)
    leaves = _clouds(random, 20)[..., None] * np.array((0.14, 0.07, 0.01), np.float32) * seasons[1]
    fine = (0.10 * _clouds(random, 24))[..., None]
    pixels = (ground * (1 - sky) + sky * 0.75) * (texture[..., None] + fine) + leaves
    return pixels * (1 - trunks[..., None]) + trunks[..., None] * np.array((0.20, 0.16, 0.12), np.float32)


def _ellipse(x: float, y: float, wide: float, high: float, angle: float = 0.0) -> np.ndarray:
    """Return a soft ellipse, shape (48, 48), in 0..1; center, half axes in pixels, angle in radians."""
    right, down = COLUMNS - x, ROWS - y
    cosine, sine = np.cos(angle), np.sin(angle)
    distance = ((right * cosine + down * sine) / wide) ** 2 + ((down * cosine - right * sine) / high) ** 2
    return np.clip((1.2 - distance) * min(wide, high), 0, 1)


# Parts of an animal: center right and down of the body's center, half axes, angle, brightness beside the coat's.
PARTS = {
    "deer": ((0, 0, 7, 3.2, 0, 1), (7, -5, 1.5, 4.5, 0.5, 1), (9, -9, 2.5, 1.5, 0.3, 1), (9, -12, 0.7, 3, -0.3, 0.7),
             (-5, 6, 0.8, 5, 0, 0.8), (-3, 6, 0.8, 5, 0, 0.7), (4, 6, 0.8, 5, 0, 0.8), (6, 6, 0.8, 5, 0, 0.7)),
    "boar": ((0, 0, 8, 4.8, 0, 1), (8, 1.5, 4, 2.6, 0.4, 0.9), (12, 3.5, 1.5, 1.1, 0.3, 1.3), (-5, 6, 1.1, 2.5, 0, 0.8),
             (5, 6, 1.1, 2.5, 0, 0.8)),
    "fox": ((0, 0, 6, 2.3, 0, 1), (7, -2, 2.2, 1.8, 0.4, 1), (8, -4.5, 0.7, 1.4, 0, 0.8), (-8, 1, 4.5, 1.6, 0.3, 1),
            (-12, 2, 1.3, 1.2, 0, 1.7), (-4, 3.5, 0.7, 2.5, 0, 0.5), (4, 3.5, 0.7, 2.5, 0, 0.5)),
    "hare": ((0, 0, 4.2, 3.2, 0.2, 1), (4, -3, 2, 1.8, 0, 1), (3.2, -7, 0.7, 3, -0.2, 0.9), (4.8, -7, 0.7, 3, 0.1, 0.8),
             (-4.5, 1, 1.1, 1, 0, 1.6), (3, 3, 2, 0.8, 0, 0.8)),
    "badger": ((0, 0, 6.5, 3.2, 0, 1), (7, 0.5, 3, 1.7, 0.3, 1.6), (7, 0.2, 3, 0.6, 0.3, 0.2),
               (-4, 3.5, 1.2, 1.6, 0, 0.4), (4, 3.5, 1.2, 1.6, 0, 0.4)),
}  # fmt: skip


def _animal(pixels: np.ndarray, label: str, coat: np.ndarray, day: bool, random: np.random.Generator) -> np.ndarray:
    size = random.uniform(0.8, 1.7)
    x, y = random.uniform(6, SIZE - 6), random.uniform(22, SIZE - 8)
    flip, tilt = random.choice((-1.0, 1.0)), random.normal(0, 0.12)
    coat = np.clip(coat * random.uniform(0.75, 1.25) + random.normal(0, 0.03, 3), 0.05, 1)
    fur = 1 + 0.3 * _clouds(random, 24)[..., None]
    for right, down, wide, high, angle, bright in PARTS[label]:
        jitter = random.normal(0, 0.35, 2)
        mask = _ellipse(x + flip * size * (right + jitter[0]), y + size * (down + jitter[1] + tilt * right),
                        max(size * wide, 0.6), max(size * high, 0.6), flip * angle)[..., None]  # fmt: skip
        pixels = pixels * (1 - mask) + mask * np.clip(coat * bright * fur, 0, 1)
    if not day:  # the flash in the eyes
        eye = _ellipse(x + flip * size * PARTS[label][1][0], y + size * PARTS[label][1][1], 0.8, 0.8)[..., None]
        pixels = pixels + eye * 0.5
    return pixels


def _cover(pixels: np.ndarray, seasons: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Put grass, a twig or falling snow before the animal, and blur by motion."""
    if random.random() < 0.35:
        middle, width, slope = random.uniform(4, SIZE - 4), random.uniform(1, 3.5), random.normal(0, 0.6)
        twig = np.clip(width - np.abs(COLUMNS - middle - slope * (ROWS - 24)), 0, 1)[..., None]
        pixels = pixels * (1 - twig) + twig * (seasons @ np.array(GROUNDS)) * random.uniform(0.35, 0.8)
    if seasons[2] > 0 and random.random() < 0.5:
        flakes = (random.random((SIZE, SIZE, 1)) < 0.05) * seasons[2]
        pixels = pixels * (1 - flakes) + flakes * 0.95
    if random.random() < 0.3:
        shift = int(random.integers(1, 4))
        pixels = (pixels + np.roll(pixels, shift, 1) + np.roll(pixels, 2 * shift, 1)) / 3
    return pixels


def _expose(pixels: np.ndarray, day: bool, age: float, random: np.random.Generator) -> np.ndarray:
    """Light the scene by day or by infrared at night, and see it through a sensor of that age."""
    if day:
        pixels = pixels * random.uniform(0.65, 1.2) * (1 + random.normal(0, 0.04, 3))
    else:
        flash = np.exp(-((COLUMNS - 24) ** 2 + (ROWS - 30) ** 2) / random.uniform(400, 900))[..., None]
        gray = pixels @ np.array((0.5, 0.3, 0.2), np.float32)
        pixels = gray[..., None] * (0.4 + 0.9 * flash) * random.uniform(0.7, 1.2) * np.ones(3)
    if age > 0:  # haze, a magenta cast, and blur by a wet lens
        soft = (
            pixels + np.roll(pixels, 1, 0) + np.roll(pixels, -1, 0) + np.roll(pixels, 1, 1) + np.roll(pixels, -1, 1)
        ) / 5
        pixels = pixels * (1 - min(age, 1)) + soft * min(age, 1)
        pixels = pixels * (1 - 0.25 * age) + 0.15 * age * np.array((1.0, 0.75, 1.05))
    return np.clip(pixels + random.normal(0, 0.02 + 0.012 * age, pixels.shape), 0, 1)
