"""Made-up applications with known costs, and their histories of scaled-down and full-scale runs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from leadline.core.runs import Sample, Scale, Value


@dataclass(frozen=True, slots=True)
class Application:
    """``cost`` in seconds of a configuration; ``draw`` draws one, at full scale or scaled down."""

    name: str
    scale_features: tuple[str, ...]
    draw: Callable[[Random, bool], dict[str, Value]]
    cost: Callable[[dict[str, Value]], float]
    startup: Callable[[dict[str, Value]], float]

    def sample(self, chance: Random, full: bool, *, noise: float = 0.04, reports: bool = False) -> Sample:
        features = self.draw(chance, full)
        value = self.cost(features) * math.exp(noise * chance.gauss(0, 1))
        scale = Scale.FULL_SCALE if full else Scale.SCALED_DOWN
        if not reports:
            return Sample(features, value, scale, cost_s=value)
        startup = self.startup(features)
        units = math.prod(float(features[name]) for name in self.scale_features)
        each = 0.9 * (value - startup) / units
        return Sample(features, value, scale, startup_s=startup, units=units, unit_s=each, cost_s=value)

    def history(self, seed: int, small: int = 84, large: int = 0, *, reports: bool = False) -> list[Sample]:
        chance = Random(f"{self.name} {seed}")  # noqa: S311 - noise, no secret
        runs = [self.sample(chance, full=False, reports=reports) for _ in range(small)]
        return runs + [self.sample(chance, full=True, reports=reports) for _ in range(large)]

    def truth(self, seed: int, count: int = 60) -> list[Sample]:
        chance = Random(f"{self.name} truth {seed}")  # noqa: S311 - as above
        return [self.sample(chance, full=True, noise=0.0) for _ in range(count)]


def between(chance: Random, low: float, high: float) -> int:
    return round(math.exp(chance.uniform(math.log(low), math.log(high))))


def _dnn(chance, full):
    return {
        "samples": between(chance, 20_000, 100_000) if full else between(chance, 500, 5_000),
        "epochs": between(chance, 10, 40) if full else between(chance, 1, 4),
        "width": chance.choice([128, 256, 512, 1024]),
        "batch": chance.choice([32, 64, 128, 256]),
        "cores": chance.choice([2, 4, 8, 16]),
        "device": chance.choice(["v100", "a100"]),
    }


def _dnn_cost(f):
    speed = {"v100": 1.0, "a100": 2.1}[f["device"]]
    step = 4e-2 / f["batch"] + (2e-4 * f["width"] / 1000 + 5e-4 * (f["width"] / 1000) ** 2) / speed
    return _dnn_start(f) + f["epochs"] * f["samples"] * (step + 2e-4 / f["cores"])


def _dnn_start(f):
    return 3.0 if f["device"] == "v100" else 4.5


def _fft(chance, full):
    return {
        "size": 2 ** (chance.randint(20, 24) if full else chance.randint(15, 20)),
        "repeats": between(chance, 20, 60) if full else between(chance, 2, 12),
        "precision": chance.choice(["single", "double"]),
        "threads": chance.choice([1, 2, 4, 8]),
    }


def _fft_cost(f):
    factor = {"single": 1.0, "double": 1.9}[f["precision"]]
    work = f["size"] * math.log2(f["size"])
    return 0.3 + 2e-8 * work * f["repeats"] * factor * (0.1 + 0.9 / f["threads"])


def _solve(chance, full):
    return {
        "unknowns": between(chance, 150_000, 600_000) if full else between(chance, 8_000, 80_000),
        "iterations": between(chance, 200, 1000) if full else between(chance, 10, 100),
        "tolerance": chance.choice([1e-4, 1e-6, 1e-8]),
        "preconditioner": chance.choice(["none", "jacobi", "ilu"]),
        "cores": chance.choice([1, 2, 4, 8]),
    }


def _solve_cost(f):
    factor = {"none": 1.0, "jacobi": 1.15, "ilu": 2.4}[f["preconditioner"]]
    return 0.5 + 4e-7 * f["unknowns"] ** 1.5 / f["cores"] ** 0.8 + 2e-7 * f["unknowns"] * f["iterations"] * factor


def _files(chance, full):
    return {
        "gigabytes": chance.uniform(40, 400) if full else chance.uniform(0.5, 6),
        "files": between(chance, 20_000, 200_000) if full else between(chance, 200, 4_000),
        "streams": chance.choice([1, 2, 4, 8]),
        "target": chance.choice(["nfs", "lustre"]),
    }


def _files_cost(f):
    bandwidth = {"nfs": 0.11, "lustre": 0.9}[f["target"]] * f["streams"] ** 0.5
    latency = {"nfs": 2e-3, "lustre": 6e-3}[f["target"]]
    return 1.2 + f["gigabytes"] / bandwidth + f["files"] * latency / f["streams"]


def _amdahl(chance, full):
    return {
        "grid": chance.randint(250, 500) if full else chance.randint(60, 200),
        "steps": between(chance, 200, 800) if full else between(chance, 20, 200),
        "cores": chance.choice([1, 2, 4, 8, 16, 32]),
    }


def _amdahl_cost(f):
    return 2.0 + f["steps"] * (1e-7 * f["grid"] ** 3 / f["cores"] + 2e-6 * f["grid"] ** 2)


def _cliff(chance, full):
    return {
        "rows": between(chance, 100_000, 800_000) if full else between(chance, 4_000, 30_000),
        "block": chance.choice([16, 32, 64, 128, 256, 512]),
        "threads": chance.choice([1, 2, 4, 8]),
        "kernel": chance.choice(["plain", "simd"]),
    }


def _cliff_cost(f):
    cache = 1.0 if f["block"] <= 64 else 1.8
    threads = {1: 1.0, 2: 0.52, 4: 0.3, 8: 0.42}[f["threads"]]
    simd = (0.5 if f["block"] >= 32 else 0.9) if f["kernel"] == "simd" else 1.0
    return 0.4 + 1e-4 * f["rows"] * cache * threads * simd


def _rectified(chance, full):
    return {
        "elements": between(chance, 2_000_000, 20_000_000) if full else between(chance, 50_000, 600_000),
        "degree": chance.choice([1, 2, 4, 8, 16]),
        "cores": chance.choice([1, 2, 4, 8]),
    }


def _rectified_cost(f):
    computing = 4e-7 * f["degree"] ** 1.5 / f["cores"]
    moving = 1.5e-6
    return 0.2 + f["elements"] * max(computing, moving)


def _memory(chance, full):
    return {
        "batch": between(chance, 64, 512) if full else between(chance, 2, 24),
        "width": chance.choice([256, 512, 1024, 2048]),
        "layers": chance.choice([4, 8, 16, 32]),
        "optimizer": chance.choice(["sgd", "adam"]),
    }


def _memory_cost(f):
    states = {"sgd": 8, "adam": 16}[f["optimizer"]]
    return 3.5e8 + states * 12 * f["layers"] * f["width"] ** 2 + 34 * f["batch"] * 64 * f["width"] * f["layers"]


def _fixed(seconds):
    return lambda _: seconds


APPLICATIONS = (
    Application("dnn", ("samples", "epochs"), _dnn, _dnn_cost, _dnn_start),
    Application("fft", ("size", "repeats"), _fft, _fft_cost, _fixed(0.3)),
    Application("solve", ("unknowns", "iterations"), _solve, _solve_cost, _fixed(0.5)),
    Application("files", ("gigabytes", "files"), _files, _files_cost, _fixed(1.2)),
    Application("amdahl", ("grid", "steps"), _amdahl, _amdahl_cost, _fixed(2.0)),
)

CLIFFS = Application("cliffs", ("rows",), _cliff, _cliff_cost, _fixed(0.4))
"""Its unit time is no product of powers: a cache overflows, threads outnumber cores, two features act together."""
RECTIFIED = Application("rectified", ("elements",), _rectified, _rectified_cost, _fixed(0.2))
MEMORY = Application("memory", ("batch",), _memory, _memory_cost, _fixed(3.5e8))


@pytest.fixture(params=APPLICATIONS, ids=lambda one: one.name)
def application(request) -> Application:
    return request.param


@pytest.fixture(scope="session")
def dnn() -> Application:
    return APPLICATIONS[0]


@pytest.fixture(scope="session")
def history(dnn) -> list[Sample]:
    return dnn.history(7, 60, 3, reports=True)


@pytest.fixture(scope="session")
def cliffs() -> Application:
    return CLIFFS


@pytest.fixture(scope="session")
def rectified() -> Application:
    return RECTIFIED


@pytest.fixture(scope="session")
def memory() -> Application:
    return MEMORY
