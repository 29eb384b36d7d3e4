"""Readers of what Leadline keeps about a machine: probes, calibrated devices, the cache of the catalog, the journal."""

import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path

from benchmarks.trust.journal_files import damage
from benchmarks.trust.mutations import Form
from benchmarks.trust.readers import Reader
from leadline.app.estimate.kept_probes import apply_probe, find_probe, keep_probe
from leadline.app.machines.systems import check_catalog
from leadline.app.settings import DATA_DIR_VARIABLE
from leadline.app.workloads.read import read_workload
from leadline.catalog.read import TomlCatalog
from leadline.core.documents import to_json
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.hardware import Calibration, Device, DeviceKind, KernelTiming
from leadline.core.jobs import JobState
from leadline.core.progress import LoopProgress, Probe, ProbeForecast, Progress
from leadline.core.runs import Measurement
from leadline.execution.plane.journal import PlaneJournal
from tests.app.jobs.test_damaged_journal import write_journal

COMMAND = (sys.executable, "train.py")
PROBE = Probe(
    COMMAND,
    JobState.COMPLETED,
    finished=False,
    progress=Progress("hook", (LoopProgress("epoch", 2, 20.0, 10, first_s=(10.0,), sampled_s=(10.0,)),), steps=20),
    forecast=ProbeForecast(
        Interval(100.0, 90.0, 120.0), 1.0, "step", Interval(1.0, 0.9, 1.1), assumptions=("no loop ends early",)
    ),
    measured={"host_memory_bytes": Measurement(1e9, "byte", "proc")},
)
PREDICTED = Estimate(
    Target("this CPU"), "tracing", Basis(Tier.SPECS), elapsed_s=Interval(9.0, 5.0, 20.0),
    host_memory_bytes=Interval(1e8, 1e8, 2e8),
)  # fmt: skip
CALIBRATED = Device(
    "this CPU", "amd", DeviceKind.CPU, memory_bytes=2**34, compute_units=8, memory_bytes_per_s=5e10,
    peak_flops_per_s={"float32": 1e12},
    calibration=Calibration(
        "2026-01-01T00:00:00+00:00", "torch 2.10", 8,
        (KernelTiming("gemm", "float32", {"m": 64, "n": 64, "k": 64}, 1e-5, 524288.0, 49152.0),),
        {"launch_s": 1e-6, "copy_bytes_per_s": 1e10},
    ),
)  # fmt: skip


@contextmanager
def _data_folder(folder: Path) -> Iterator[Path]:
    """Keep the user's data in a folder for a while."""
    before = os.environ.get(DATA_DIR_VARIABLE)
    os.environ[DATA_DIR_VARIABLE] = str(folder)
    try:
        yield folder
    finally:
        os.environ.pop(DATA_DIR_VARIABLE)
        if before is not None:
            os.environ[DATA_DIR_VARIABLE] = before


def _keep(folder: Path) -> Path:
    """Keep the probe in a data folder as ``leadline probe`` does, and return its file."""
    keep_probe(PROBE, {})
    (file,) = (folder / "probes").iterdir()
    return file


@cache
def probes() -> tuple[bytes, ...]:
    """Return a kept probe."""
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as name, _data_folder(Path(name)) as folder:
        return (_keep(folder).read_bytes(),)


def _read_probe(path: Path) -> object:
    """Use a probe in the estimate of its command."""
    folder = path.parent / "data"
    with _data_folder(folder), chdir(path.parent):
        file = _keep(folder)
        file.unlink()
        file.symlink_to(path)
        kept = find_probe(read_workload(COMMAND))
        return kept and apply_probe(PREDICTED, kept)


def _read_record(path: Path) -> object:
    """Read the record of a calibrated device as every command does, and check it."""
    folder = path.parent / "catalog" / "devices"
    folder.mkdir(parents=True)
    (folder / path.name).symlink_to(path)
    catalog = TomlCatalog(folder.parent)
    return catalog.device("this CPU"), check_catalog(catalog, path)


@cache
def caches() -> tuple[bytes, ...]:
    """Return the cache of the parsed devices."""
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        TomlCatalog(cache=Path(folder)).devices()
        return (Path(folder, "devices.msgpack").read_bytes(),)


def _read_cache(path: Path) -> object:
    """Read the devices with a damaged cache, which must change nothing."""
    devices = TomlCatalog(cache=path.parent).devices()
    if {device.name for device in devices} != {device.name for device in TomlCatalog().devices()}:
        raise ValueError("a damaged cache changed the devices")
    return devices


@cache
def journals() -> tuple[bytes, ...]:
    """Return a journal of three jobs and two attempts."""
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        path = Path(folder, "journal.sqlite")
        write_journal(path)  # type: ignore[no-untyped-call]  # the tests have no types
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
        return (path.read_bytes(),)


@cache
def _documents(table: str, column: str) -> tuple[bytes, ...]:
    """Return the documents in a column of the journal."""
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        path = Path(folder, "journal.sqlite")
        path.write_bytes(journals()[0])
        connection = sqlite3.connect(path)
        rows = connection.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()  # noqa: S608 - our own names
        connection.close()
    return tuple(text.encode() for (text,) in rows)


def _read_journal(path: Path) -> object:
    with PlaneJournal(path) as journal:
        return journal.open_jobs(), journal.newest_jobs(), journal.events()


def _plane(name: str, table: str, column: str) -> Reader:
    def read(path: Path) -> object:
        journal = path.with_name("journal.sqlite")
        journal.write_bytes(journals()[0])
        damage(journal, table, column, path.read_bytes().decode("utf-8", "replace"))
        return _read_journal(journal)

    return Reader(name, "execution", "row.json", Form.JSON, lambda: _documents(table, column), read, opens=False)


READERS = (
    Reader("kept probe", "app", "probe.json", Form.JSON, probes, _read_probe, 2),
    Reader(
        "record of a calibrated device", "catalog", "this-cpu.json", Form.JSON,
        lambda: (to_json(CALIBRATED).encode(),), _read_record, 2,
    ),
    Reader("cache of the catalog", "catalog", "devices.msgpack", Form.BINARY, caches, _read_cache),
    Reader("journal of the plane", "execution", "journal.sqlite", Form.BINARY, journals, _read_journal),
    _plane("job of the plane", "job", "document"),
    _plane("plan of the plane", "job", "plan"),
    _plane("attempt of the plane", "attempt", "document"),
    _plane("event of the plane", "event", "said"),
)  # fmt: skip
