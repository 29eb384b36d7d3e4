"""The measured runs: rows of the makers' tables of models, with what tells a row from all others."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dnn.tables import read_table
from leadline.core.units import GIB

TABLE, ZOO = "openmmlab_memory", "detectron2_memory"
PACKAGES = {"mmsegmentation": "mmseg", "mmdetection": "mmdet"}
"""Project of the table → its package; the others train on points and videos."""
COLUMNS = ("project", "path", "family", "section", "mem_gb", "cells")
ZOO_COLUMNS = ("section", "Name", "lr sched", "train mem (GB)")
UNLIKE = ("Config", "Download", "download")


@dataclass(frozen=True, slots=True)
class PublishedPeak:
    """One row: ``memory_bytes`` is the most that any of its GPUs held, ``cells`` are the row's texts by heading."""

    key: str
    package: str
    family: str
    memory_bytes: float
    cells: dict[str, str]


def published_peaks(data: Path) -> tuple[list[PublishedPeak], Counter[str]]:
    """Return the rows of the three packages that tell their memory, and how many others there are, by why.

    The tables' gigabytes are 2³⁰ bytes: the logs divide ``max_memory_allocated`` by 2²⁰, the tables by 1024.

    Raises:
        InvalidInput: the folder lacks the table, or the table a column.
    """
    columns = read_table(data, TABLE, COLUMNS)
    found: list[PublishedPeak] = []
    others: Counter[str] = Counter()
    table = zip(*(columns[name].tolist() for name in COLUMNS), strict=True)
    for project, path, family, section, memory, cells in table:
        package = PACKAGES.get(re.split(r"[^a-z]", project)[0])
        told = parse_number(memory)
        if project.startswith("mmdetection3d") or package is None:
            others["points and videos (mmdetection3d, mmaction2): ops of their own kind"] += 1
        elif told is None:
            others["the row tells no memory"] += 1
        else:
            row = {name: str(text) for name, text in json.loads(cells).items() if name not in UNLIKE}
            found.append(PublishedPeak(key_of(path, section, row), package, family, told * GIB, row))
    found += _zoo(data, others)
    return found, others


def _zoo(data: Path, others: Counter[str]) -> Iterator[PublishedPeak]:
    """Yield the rows of detectron2's own table, whose sections are its families."""
    columns = read_table(data, ZOO, ZOO_COLUMNS)
    for section, name, schedule, memory in zip(*(columns[one].tolist() for one in ZOO_COLUMNS), strict=True):
        told = parse_number(memory)
        if told is None:
            others["the row tells no memory"] += 1
            continue
        row = {"Section": section, "Backbone": name, "Lr schd": schedule, "Mem (GB)": memory}
        yield PublishedPeak(key_of(ZOO, section, row), "detectron2", f"detectron2 {section}", told * GIB, row)


def key_of(path: str, section: str, cells: dict[str, str]) -> str:
    """Return what names a row by all it says, links left out."""
    told = json.dumps([path, section, sorted(cells.items())], ensure_ascii=True)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def parse_number(text: str) -> float | None:
    """Return the first number in a cell, or ``None``."""
    told = re.search(r"\d+\.?\d*", str(text))
    return float(told.group()) if told else None
