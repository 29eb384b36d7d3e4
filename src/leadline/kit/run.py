"""Run measurements within a time limit, one line per point, into a resumable file."""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from leadline.kit import OP_COLUMNS, KitError
from leadline.kit.collectives import sweep_collectives
from leadline.kit.design import DesignSettings, MeasurementPoint, design_points
from leadline.kit.row_file import RowFile
from leadline.kit.worker import Worker, WorkerCrashed, WorkerTimedOut

POINT_S = 90.0
"""Time limit of a point; longer ones hang or are not worth it."""
LONGEST_STEP_S = {"cpu": 0.5, "cuda": 1.0}
QUICK_STEP_S = 0.05
MOST_PROCESSES = 128
MAX_FAILED_STARTS = 3
"""Failed starts of a worker in a row after which the run gives up."""


@dataclass(frozen=True)
class MeasureOptions:
    """Options of a run."""

    out: str
    minutes: float = 20.0
    device: str = "auto"
    python: str = sys.executable
    quick: bool = False
    seed: int = 0
    compiled: bool = False
    ops: bool = True
    point_s: float = POINT_S
    collectives: int = 0
    """Processes among which collectives are timed; 0: all GPUs of this machine."""


@dataclass
class MeasureSummary:
    """Progress or result of a run: outcomes of this run, points in the file, points left."""

    path: str
    device: str
    in_file: int
    left: int
    outcomes: Dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    elapsed_s: float = 0.0
    notes: List[str] = field(default_factory=list)


Progress = Callable[[MeasureSummary, Dict[str, Any]], None]
"""Called after each row."""


def run_measurements(options: MeasureOptions, progress: Progress = lambda *_: None) -> MeasureSummary:
    """Measure points into ``options.out`` until the time is up or all are measured; resumes an existing file.

    Raises:
        KitError: the file is not writable or belongs to another machine; torch or the device is missing; a worker
            cannot start.
    """
    begun = time.monotonic()
    _check_options(options)
    file = RowFile(options.out).open()
    is_new = file.header is None
    session = _Session(options, file, begun)
    try:
        return session.run(progress)
    finally:
        session.end()
        file.close()
        if is_new and file.header is None and Path(options.out).stat().st_size == 0:
            Path(options.out).unlink()  # nothing came of it


class _Session:
    """One run over a file, with its live worker."""

    def __init__(self, options: MeasureOptions, file: RowFile, begun: float) -> None:
        self.options, self.file, self.begun = options, file, begun
        self.worker: Optional[Worker] = None
        self.failed_starts = 0

    def run(self, progress: Progress) -> MeasureSummary:
        if self.file.header is not None:
            self._require_same_design(self.file.header["design"])
        header = self._start(with_header=True)
        settings = self._settings(header)
        self.file.begin({**header, "design": vars(settings), "op_columns": list(OP_COLUMNS)})
        stored_points = [row for row in self.file.rows if row["kind"] == "point"]
        if len(stored_points) == len(self.file.rows):
            self._sweep_collectives(header["device"])
        points = design_points(settings)
        measured = {row["key"] for row in stored_points}
        # A resumed run skips larger batches of what has failed, as the first run did: they would fail too.
        failed: Dict[str, int] = {}
        for stored in stored_points:
            _record_failure(failed, MeasurementPoint(**stored["point"]), stored["outcome"])
        remaining = [point for point in points if point.key not in measured]
        summary = MeasureSummary(
            self.options.out, header["device"]["name"], len(measured), len(remaining), notes=self._notes(header)
        )
        for point in remaining:
            remaining_s = self.options.minutes * 60 - (time.monotonic() - self.begun)
            if remaining_s <= 0:
                break
            summary.left -= 1
            if failed.get(point.cell, point.batch + 1) <= point.batch:
                summary.skipped += 1
                continue
            row = self._measure(point, remaining_s)
            if row is None:
                summary.left += 1
                break
            self.file.append(row)
            summary.outcomes[row["outcome"]] = summary.outcomes.get(row["outcome"], 0) + 1
            _record_failure(failed, point, row["outcome"])
            summary.in_file += 1
            summary.elapsed_s = time.monotonic() - self.begun
            progress(summary, row)
        summary.elapsed_s = time.monotonic() - self.begun
        return summary

    def _sweep_collectives(self, device: Dict[str, Any]) -> None:
        """Time collectives once a file, among several GPUs or the requested number of processes."""
        options = self.options
        processes = options.collectives or device.get("count", 1)
        if processes > 1:
            self.end()  # the worker holds memory and time of the first GPU
            for row in sweep_collectives(options.python, device["type"], processes, quick=options.quick):
                self.file.append(row)

    def end(self) -> None:
        if self.worker is not None:
            self.worker.end()
            self.worker = None

    def _measure(self, point: MeasurementPoint, remaining_s: float) -> Optional[Dict[str, Any]]:
        """Return the point's row even if the worker fails; ``None`` if the run's time was up first."""
        begun = time.monotonic()
        if self.worker is None:
            self._start(with_header=False)
        assert self.worker is not None  # noqa: S101 - it has just been started
        limit_s = min(self.options.point_s, remaining_s)
        try:
            answer = self.worker.measure(vars(point), limit_s)
        except WorkerCrashed as error:
            self.worker = None
            outcome: Dict[str, Any] = {"outcome": "crash", "reason": str(error)}
        except WorkerTimedOut:
            self.worker = None
            if limit_s < self.options.point_s:
                return None
            outcome = {"outcome": "timeout", "reason": f"it took longer than {limit_s:g} s"}
        else:
            outcome = answer["row"]
            if answer["spent"]:
                self.end()
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        timing = {"wall_s": time.monotonic() - begun, "measured_at": now}
        return {"kind": "point", "key": point.key, "point": vars(point), **outcome, **timing}

    def _start(self, *, with_header: bool) -> Dict[str, Any]:
        """Start a worker and return its machine header; ``KitError`` if it does not start."""
        options = self.options
        request = {"device": options.device, "quick": options.quick, "ops": options.ops, "header": with_header}
        while True:
            worker = Worker(options.python, request)
            try:
                answer = worker.hello()
            except WorkerCrashed as error:
                self.failed_starts += 1
                if self.failed_starts >= MAX_FAILED_STARTS:
                    raise KitError(f"{options.python} does not start with torch ({error}): run it by hand") from error
                continue
            except BaseException:
                worker.end()
                raise
            self.failed_starts = 0
            self.worker = worker
            header: Dict[str, Any] = answer["header"]
            return header

    def _settings(self, header: Dict[str, Any]) -> DesignSettings:
        """Return the design settings, of a resumed file from its header."""
        options = self.options
        if self.file.header is not None:
            return DesignSettings(**self.file.header["design"])
        packages = tuple(name for name in ("timm", "transformers") if header["software"].get(name))
        kind = header["device"]["type"]
        longest_s = QUICK_STEP_S if options.quick else LONGEST_STEP_S[kind]
        return DesignSettings(kind, header["rates"], packages, options.seed, options.quick, options.compiled, longest_s)

    def _require_same_design(self, stored: Dict[str, Any]) -> None:
        options = self.options
        for option, name in (("seed", "seed"), ("quick", "quick"), ("compile", "compiled")):
            if stored[name] != getattr(options, name):
                raise KitError(
                    f"{options.out} was begun with another --{option} ({stored[name]}): leave it as it was, or give "
                    "--out another file"
                )

    def _notes(self, header: Dict[str, Any]) -> List[str]:
        notes = [self.file.unlocked] if self.file.unlocked else []
        if header["energy"]["reason"]:
            notes.append(f"energy is not measured: {header['energy']['reason']}")
        return notes


def _record_failure(failed: Dict[str, int], point: MeasurementPoint, outcome: str) -> None:
    """Keep the smallest failed batch of each cell."""
    if outcome != "ok":
        failed[point.cell] = min(point.batch, failed.get(point.cell, point.batch))


def _check_options(options: MeasureOptions) -> None:
    if not 0 < options.minutes < 1e5:
        raise KitError(f"--minutes {options.minutes:g} is no time to measure in: give for example 20")
    if not 0 <= options.collectives <= MOST_PROCESSES or options.collectives == 1:
        raise KitError(f"--collectives {options.collectives} is no group of processes: give 2 to {MOST_PROCESSES}")


def describe_row(row: Dict[str, Any]) -> Tuple[str, str]:
    """Return a row in words: point and outcome."""
    if row["outcome"] != "ok":
        return row["key"], f"{row['outcome']}: {row['reason']}"
    memory = row["memory"]
    peak = memory["peak_allocated_bytes"] or memory["peak_host_bytes"]
    return row["key"], f"{row['step_s'] * 1e3:.3g} ms" + (f", {peak / 2**20:.0f} MiB" if peak else "")
