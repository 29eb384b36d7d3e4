"""Measure as many points as the time allows, one line each, into a file that can be resumed."""

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from leadline.kit import OP_COLUMNS, KitError
from leadline.kit.design import DesignSettings, MeasurementPoint, design_points
from leadline.kit.row_file import RowFile
from leadline.kit.worker import Worker, WorkerCrashed, WorkerTimedOut

POINT_S = 90.0
"""A point that takes longer hangs, or is not worth its time."""
LONGEST_STEP_S = {"cpu": 0.5, "cuda": 1.0}
QUICK_STEP_S = 0.05
WORKERS_LOST = 3
"""Workers in a row that could not even start, after which there is no use in another."""


@dataclass(frozen=True)
class MeasureOptions:
    """What is asked for. ``memory_bytes`` bounds a worker on the CPU, by default by a share of what is free."""

    out: str
    minutes: float = 20.0
    device: str = "auto"
    python: str = sys.executable
    quick: bool = False
    seed: int = 0
    compiled: bool = False
    ops: bool = True
    point_s: float = POINT_S
    memory_bytes: Optional[int] = None


@dataclass
class MeasureSummary:
    """How far a run is, or how it ended: counts of this run by outcome, of the file, and of what is left."""

    path: str
    device: str
    in_file: int
    left: int
    outcomes: Dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    elapsed_s: float = 0.0
    notes: List[str] = field(default_factory=list)


Progress = Callable[[MeasureSummary, Dict[str, Any]], None]
"""Told how far the run is, after each row."""


def run_measurements(asked: MeasureOptions, progress: Progress = lambda *_: None) -> MeasureSummary:
    """Measure points into ``asked.out`` until the time is up or all are measured; resume a file that is there.

    Raises:
        KitError: the file cannot be written, or is another machine's; there is no torch or no such device; a worker
            cannot be started. One sentence each.
    """
    begun = time.monotonic()
    if not 0 < asked.minutes < 1e5:
        raise KitError(f"--minutes {asked.minutes:g} is no time to measure in: give for example 20")
    _require_folder(asked.out)
    file = RowFile(asked.out).open()
    made = file.header is None
    session = _Session(asked, file, begun)
    try:
        return session.run(progress)
    finally:
        session.end()
        file.close()
        if made and file.header is None and Path(asked.out).stat().st_size == 0:
            Path(asked.out).unlink()  # nothing came of it


class _Session:
    """One run over a file, and the worker that is alive."""

    def __init__(self, asked: MeasureOptions, file: RowFile, begun: float) -> None:
        self.asked, self.file, self.begun = asked, file, begun
        self.worker: Optional[Worker] = None
        self.lost = 0

    def run(self, progress: Progress) -> MeasureSummary:
        if self.file.header is not None:
            self._require_same_design(self.file.header["design"])
        header = self._start(with_header=True)
        settings = self._settings(header)
        self.file.begin({**header, "design": _document(settings), "op_columns": list(OP_COLUMNS)})
        points = design_points(settings)
        known = {row["key"] for row in self.file.rows}
        failed = _failures(self.file.rows)
        left = [point for point in points if point.key not in known]
        told = MeasureSummary(
            self.asked.out, header["device"]["name"], len(known), len(left), notes=self._notes(header)
        )
        outcomes: Counter[str] = Counter()
        for point in left:
            remaining_s = self._remaining_s()
            if remaining_s <= 0:
                break
            told.left -= 1
            if failed.get(point.cell, point.batch + 1) <= point.batch:
                told.skipped += 1
                continue
            row = self._measure(point, remaining_s)
            if row is None:
                told.left += 1
                break
            self.file.append(row)
            outcomes[row["outcome"]] += 1
            if row["outcome"] != "ok":
                failed[point.cell] = min(point.batch, failed.get(point.cell, point.batch))
            told.in_file += 1
            told.outcomes, told.elapsed_s = dict(outcomes), time.monotonic() - self.begun
            progress(told, row)
        told.elapsed_s = time.monotonic() - self.begun
        return told

    def end(self) -> None:
        """End the worker."""
        if self.worker is not None:
            self.worker.end()
            self.worker = None

    def _remaining_s(self) -> float:
        return self.asked.minutes * 60 - (time.monotonic() - self.begun)

    def _measure(self, point: MeasurementPoint, remaining_s: float) -> Optional[Dict[str, Any]]:
        """Return the point's row, whatever becomes of the worker; ``None`` if the run's time was up first."""
        begun = time.monotonic()
        if self.worker is None:
            self._start(with_header=False)
        assert self.worker is not None  # noqa: S101 - it has just been started
        limit_s = min(self.asked.point_s, remaining_s)
        try:
            answer = self.worker.measure(point.document(), limit_s)
        except WorkerCrashed as error:
            self.worker = None
            found: Dict[str, Any] = {"outcome": "crash", "reason": str(error)}
        except WorkerTimedOut:
            self.worker = None
            if limit_s < self.asked.point_s:
                return None
            found = {"outcome": "timeout", "reason": f"it took longer than {limit_s:g} s"}
        else:
            found = answer["row"]
            if answer["spent"]:
                self.end()
        whole = {"wall_s": time.monotonic() - begun, "measured_at": _now()}
        return {"kind": "point", "key": point.key, "point": point.document(), **found, **whole}

    def _start(self, *, with_header: bool) -> Dict[str, Any]:
        """Start a worker and return what it says of the machine; ``KitError`` if it cannot be brought up."""
        asked = self.asked
        request = {"device": asked.device, "quick": asked.quick, "ops": asked.ops, "memory_bytes": asked.memory_bytes,
                   "header": with_header}  # fmt: skip
        while True:
            worker = Worker(asked.python, request)
            try:
                answer = worker.hello()
            except WorkerCrashed as error:
                self.lost += 1
                if self.lost >= WORKERS_LOST:
                    raise KitError(f"{asked.python} does not start with torch ({error}): run it by hand") from error
                continue
            except BaseException:
                worker.end()
                raise
            self.lost = 0
            self.worker = worker
            header: Dict[str, Any] = answer["header"]
            return header

    def _settings(self, header: Dict[str, Any]) -> DesignSettings:
        """Return what the design depends on: of a file that is resumed, what its header says."""
        asked = self.asked
        if self.file.header is not None:
            return DesignSettings(**self.file.header["design"])
        packages = tuple(name for name in ("timm", "transformers") if header["software"].get(name))
        kind = header["device"]["type"]
        longest_s = QUICK_STEP_S if asked.quick else LONGEST_STEP_S[kind]
        return DesignSettings(kind, header["rates"], packages, asked.seed, asked.quick, asked.compiled, longest_s)

    def _require_same_design(self, kept: Dict[str, Any]) -> None:
        asked = self.asked
        for word, name in (("seed", "seed"), ("quick", "quick"), ("compile", "compiled")):
            if kept[name] != getattr(asked, name):
                raise KitError(
                    f"{asked.out} was begun with another --{word} ({kept[name]}): leave it as it was, or give --out "
                    "another file"
                )

    def _notes(self, header: Dict[str, Any]) -> List[str]:
        found = [self.file.unlocked] if self.file.unlocked else []
        if header["energy"]["reason"]:
            found.append(f"energy is not measured: {header['energy']['reason']}")
        return found


def _failures(rows: List[Dict[str, Any]]) -> Dict[str, int]:
    """Return the least batch of each cell that failed: larger ones would fail too, and are passed over."""
    found: Dict[str, int] = {}
    for row in rows:
        if row["outcome"] != "ok":
            point = MeasurementPoint(**row["point"])
            found[point.cell] = min(point.batch, found.get(point.cell, point.batch))
    return found


def _require_folder(out: str) -> None:
    folder = Path(out).absolute().parent
    if not folder.is_dir():
        raise KitError(f"the folder {folder} is not there: make it, or give --out a file in another")
    if Path(out).is_dir():
        raise KitError(f"{out} is a folder: give --out a file, such as {Path(out) / 'rows.jsonl'}")


def _document(settings: DesignSettings) -> Dict[str, Any]:
    made = dict(vars(settings))
    made["packages"] = list(settings.packages)
    return made


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def describe_row(row: Dict[str, Any]) -> Tuple[str, str]:
    """Return a row in words: which point, and what came of it."""
    if row["outcome"] != "ok":
        return row["key"], f"{row['outcome']}: {row['reason']}"
    memory = row["memory"]
    peak = memory["peak_allocated_bytes"] or memory["peak_host_bytes"]
    said = f"{row['step_s'] * 1e3:.3g} ms" + (f", {peak / 2**20:.0f} MiB" if peak else "")
    return row["key"], said
