"""The pipelines that a user may name: those of a folder, and those that ran."""

import os
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from leadline.app import settings
from leadline.core.documents import MOST_TOML_BYTES
from leadline.core.errors import UnknownName
from leadline.core.pipelines import Pipeline
from leadline.execution.plane.journal import hash_key
from leadline.files.atomic import write_atomically

MOST_FILES = 1000
"""TOML files of a folder that are looked into."""


def remember_pipeline(pipeline: Pipeline, file: Path) -> None:
    """Note where the file of a pipeline is, so that its name finds it."""
    note = _noted() / f"{pipeline.name}-{hash_key(str(file.absolute()))[:8]}"
    with settings.refuse_unwritable(_noted()):
        write_atomically(note, os.fsencode(file.absolute()), private=True)


def find_pipelines(folder: Path) -> dict[str, Path]:
    """Return name → file of the pipelines in a folder and one level below, and of those that ran, by name."""
    found: dict[str, Path] = {}
    for file in dict.fromkeys([*_files_of(folder), *_noted_files()]):
        if (name := _pipeline_name(file)) is not None:
            found.setdefault(f"{name}.{file.parent.name}" if name in found else name, file)
    return dict(sorted(found.items()))


def find_pipeline(name: str, folder: Path) -> Path:
    """Return the file of a pipeline.

    Raises:
        UnknownName: there is none of this name.
    """
    found = find_pipelines(folder)
    if name not in found:
        raise UnknownName("pipeline:", name, found)
    return found[name]


def _noted() -> Path:
    return settings.data_dir() / "pipelines"


def _noted_files() -> Iterator[Path]:
    for note in sorted(_noted().glob("*")) if _noted().is_dir() else ():
        with suppress(OSError, ValueError):  # a damaged note names no file
            yield _resolved(os.fsdecode(note.read_bytes()))


def _files_of(folder: Path) -> list[Path]:
    files = [path for pattern in ("*.toml", "*/*.toml") for path in sorted(folder.glob(pattern))[:MOST_FILES]]
    return [file for path in files if (file := _resolved(path)).is_relative_to(_resolved(folder))]


def _resolved(path: str | Path) -> Path:
    """Return a path without links; unlike ``Path.resolve``, this takes loops of links."""
    return Path(os.path.realpath(path))


def _pipeline_name(file: Path) -> str | None:
    """Return the name of the pipeline in a file; None if it has none."""
    try:
        if not file.is_file() or file.stat().st_size > MOST_TOML_BYTES:
            return None
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # another file, which is none of ours
        return None
    if not {"events", "stages"} <= content.keys():
        return None
    table = content.get("pipeline")
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) and name and os.sep not in name else file.stem
