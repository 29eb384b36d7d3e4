"""The jobs of the closed loop: real training programs of minutes, which compute on a small share of a core."""

import random
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.probe import HERE

PACED = HERE / "plane" / "paced"
SHARE = 0.02
"""Of a core, once a job trains: twenty jobs at once then leave a machine of two cores time for everything else."""


@dataclass(frozen=True, slots=True)
class Program:
    """A training program: what its work and its memory are named, and how much of each lasts minutes."""

    script: str
    work: str
    units: int
    held: str
    most: int
    resumes: bool = False


PROGRAMS = (
    Program("table_mlp.py", "--epochs", 30, "--rows", 150_000),
    Program("linear_sgd.py", "--passes", 30, "--rows", 120_000),
    Program("replay.py", "--steps", 5400, "--capacity", 4000),
    Program("picture_cnn.py", "--epochs", 8, "--copies", 8),
    Program("resuming.py", "--rounds", 180, "--rows", 150_000, resumes=True),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One job of the loop: its name and its command but for the folder in which it keeps what it writes."""

    name: str
    command: tuple[str, ...]
    resumes: bool


def trials(count: int, seed: int, *, work: float = 1.0) -> list[Trial]:
    """Return jobs of all programs in turn; work and memory of each are drawn, ``work`` scales the former."""
    chance = random.Random(seed)  # noqa: S311 - a draw of jobs, not of secrets
    found = []
    for number in range(count):
        program = PROGRAMS[number % len(PROGRAMS)]
        units = round(program.units * work * chance.uniform(0.85, 1.1))
        held = round(program.most * chance.uniform(0.6, 1.0))
        words = (program.work, str(units), program.held, str(held), "--share", str(SHARE))
        name = f"{Path(program.script).stem}-{number}"
        found.append(Trial(name, (sys.executable, str(PACED / program.script), *words), program.resumes))
    return found
