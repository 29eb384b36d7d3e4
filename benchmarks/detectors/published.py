"""The published runs: rows of the tables of models, each with a key of its own."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import read_table
from leadline.core.units import GIB

TABLE, ZOO = "openmmlab_memory", "detectron2_memory"
PACKAGES = {"mmsegmentation": "mmseg", "mmdetection": "mmdet"}
"""Project of the table → its package; the others train on points and videos."""
COLUMNS = ("project", "path", "family", "section", "mem_gb", "cells")
ZOO_COLUMNS = ("section", "Name", "lr sched", "train mem (GB)")
UNLIKE = ("Config", "Download", "download")


@dataclass(frozen=True, slots=True)
class PublishedPeak:
    """One row: ``memory_bytes`` is the peak over its GPUs, ``cells`` are the row's texts by heading."""

    key: str
    package: str
    family: str
    memory_bytes: float
    cells: dict[str, str]


def published_peaks(data: Path) -> tuple[list[PublishedPeak], Counter[str]]:
    """Return the usable rows of the three packages, and the number of left-out rows by reason.

    The tables' gigabytes are 2³⁰ bytes: the logs divide ``max_memory_allocated`` by 2²⁰, the tables by 1024.

    Raises:
        InvalidInput: The folder lacks the table, or the table a column.
    """
    columns = read_table(data, TABLE, COLUMNS)
    peaks: list[PublishedPeak] = []
    left_out: Counter[str] = Counter()
    table = zip(*(columns[name].tolist() for name in COLUMNS), strict=True)
    for project, path, family, section, memory, cells in table:
        package = PACKAGES.get(re.split(r"[^a-z]", project)[0])
        memory_gib = parse_number(memory)
        if project.startswith("mmdetection3d") or package is None:
            left_out["points and videos (mmdetection3d, mmaction2): ops of their own kind"] += 1
        elif memory_gib is None:
            left_out["no memory in the row"] += 1
        else:
            row = {name: str(text) for name, text in json.loads(cells).items() if name not in UNLIKE}
            peaks.append(PublishedPeak(key_of(path, section, row), package, family, memory_gib * GIB, row))
    peaks += _zoo(data, left_out)
    return peaks, left_out


def _zoo(data: Path, left_out: Counter[str]) -> Iterator[PublishedPeak]:
    """Yield the rows of detectron2's own table, whose sections are its families."""
    columns = read_table(data, ZOO, ZOO_COLUMNS)
    for section, name, schedule, memory in zip(*(columns[name].tolist() for name in ZOO_COLUMNS), strict=True):
        memory_gib = parse_number(memory)
        if memory_gib is None:
            left_out["no memory in the row"] += 1
            continue
        row = {"Section": section, "Backbone": name, "Lr schd": schedule, "Mem (GB)": memory}
        yield PublishedPeak(key_of(ZOO, section, row), "detectron2", f"detectron2 {section}", memory_gib * GIB, row)


def key_of(path: str, section: str, cells: dict[str, str]) -> str:
    """Return what names a row by all it says, links left out."""
    identity = json.dumps([path, section, sorted(cells.items())], ensure_ascii=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def parse_number(text: str) -> float | None:
    """Return the first number in a cell, or ``None``."""
    match = re.search(r"\d+\.?\d*", str(text))
    return float(match.group()) if match else None
