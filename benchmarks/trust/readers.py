"""Every reader of input from outside: small valid inputs, and the function that reads them as a command would."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from benchmarks.trust.mutations import Form

ROOMS = (
    "graph_files", "worker_answers", "table_files", "stored_files", "machine_files", "job_files", "journal_files",
    "scheduler_answers", "pipeline_files",
)  # fmt: skip
"""Modules of this package, each with a table ``READERS``."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One reader.

    Attributes:
        name: Of the reader, unique.
        room: Package of Leadline that reads.
        file: Name of the file to read; its suffix may decide the reader.
        form: Decides the damage.
        corpus: Returns valid contents.
        read: Reads the file of a path, and uses it as far as a command does before it computes.
        weight: Share of the mutated inputs.
        opens: The reader opens the file itself, so that the file may also be missing, a folder or a loop of links.
    """

    name: str
    room: str
    file: str
    form: Form
    corpus: Callable[[], tuple[bytes, ...]]
    read: Callable[[Path], object]
    weight: int = 1
    opens: bool = True


@cache
def all_readers() -> dict[str, Reader]:
    """Return all readers by name."""
    tables = (import_module(f"benchmarks.trust.{room}").READERS for room in ROOMS)
    return {reader.name: reader for table in tables for reader in table}


def readers_of(*rooms: str) -> list[Reader]:
    """Return the readers of some packages, such as ``graphs``."""
    return [reader for reader in all_readers().values() if reader.room.partition("/")[0] in rooms]


def put_input(reader: Reader, content: bytes, folder: Path, number: int = -1) -> Path:
    """Write a content where the reader looks for it; the numbers 0 to 2 give a folder, a loop of links, and nothing."""
    path = folder / reader.file
    path.parent.mkdir(parents=True, exist_ok=True)
    if not reader.opens or not 0 <= number <= 2:
        path.write_bytes(content)
    elif number == 0:
        path.mkdir()
    elif number == 1:
        path.symlink_to(path.name)
    return path


def texts(*contents: str) -> Callable[[], tuple[bytes, ...]]:
    """Return a corpus of texts."""
    return lambda: tuple(content.encode() for content in contents)
