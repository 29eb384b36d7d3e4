"""Readers of files that jobs and measurements write: outcomes, reports of the hook, progress, rows of the kit."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath

from benchmarks.trust.mutations import Form
from benchmarks.trust.readers import Reader, texts
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.progress import LoopProgress, Progress
from leadline.core.runs import Measurement
from leadline.execution.schedulers.attempt_files import SiteScheduler
from leadline.execution.schedulers.pbs.parsing import job_status, status_from_wrapper
from leadline.execution.transport.port import LocalTransport
from leadline.execution.wrapper.hook_report import hook_stopped, read_hook_progress
from leadline.execution.wrapper.outcome import JobOutcome, read_outcome, read_walltime_s
from leadline.execution.wrapper.progress import ProgressFile
from leadline.kit import KitError
from leadline.kit.row_file import RowFile
from tests.training.test_measurements import HEADER, OK

TIMES = {"count": 40, "total_s": 4.0, "first_s": [0.2, 0.1], "sampled_s": [0.1, 0.1], "began_s": 5.0}
LOOP = {
    "number": 1,
    "parent": 0,
    "text": "for batch in loader",
    "file": "train.py",
    "line": 12,
    "last": 20,
    "function": "main",
    "outermost": True,
    "hot": False,
    "bare": False,
    "passes": 1,
    "in_passes": 40,
    "length": 40,
    "spent_s": 4.0,
    "inside_s": {"2": 1.0},
    "times": TIMES,
}
REPORT = {
    "schema": "leadline.hook/1",
    "stopped": True,
    "now_s": 12.0,
    "loops": [LOOP, {**LOOP, "number": 2, "parent": 1}],
    "steps": TIMES,
    "frameworks": {"torch": {"backward": True, "total_steps": 100}},
    "chain": [1, 2],
    "remarks": [],
    "waiting": [{"file": "train.py", "function": "main", "outermost": True, "line": 30}],
    "keras": None,
}
KERAS = {
    "batches": TIMES,
    "epochs": TIMES,
    "in_passes": 40,
    "passes": 1,
    "asked_steps": 40,
    "asked_epochs": 2,
    "in_epochs_s": 3.5,
}
PROGRESS = "".join(f"epoch={step // 10} step={step} total_steps=100 t={step * 0.5} loss=0.4\n" for step in range(1, 31))


@cache
def outcomes() -> tuple[bytes, ...]:
    """Return outcomes of the wrapper: one that ended, and one of a running command."""
    progress = Progress(
        "hook", (LoopProgress("epoch", 2, 20.0, length=10, first_s=(10.0,), sampled_s=(10.0,)),), steps=20
    )
    ended = JobOutcome(
        JobState.FAILED,
        "2026-01-01T00:00:00.000+00:00",
        "node1",
        ("python", "train.py"),
        12,
        "2026-01-01T00:10:00.000+00:00",
        1,
        measured={"elapsed_s": Measurement(600.0, "s", "clock")},
        node={"cpu": "x"},
        progress=progress,
    )
    running = JobOutcome(JobState.RUNNING, "2026-01-01T00:00:00.000+00:00", "node1", ("true",))
    return tuple(to_json(outcome).encode() for outcome in (ended, running))


def _reports(path: Path) -> Mapping[str, JobOutcome]:
    return SiteScheduler("site", PurePosixPath(path.parent.parent), LocalTransport()).reports([path.stem])


def _read_outcome(path: Path) -> object:
    """Read an outcome as the wrapper and as the plane do."""
    ends = _reports(path)
    for outcome in ends.values():
        status_from_wrapper(job_status({}), outcome)
    return read_outcome(path)


def _read_end(path: Path) -> object:
    ends = _reports(path)
    return [status_from_wrapper(job_status({}), outcome) for outcome in ends.values()]


def _read_report(path: Path) -> object:
    return hook_stopped(path.parent), read_hook_progress(path.parent, 0.0)


def _read_progress(path: Path) -> object:
    follower = ProgressFile(path, 0.0)
    while follower.poll():
        follower.progress()
    return follower.units, follower.working_s, follower.progress(stopped=True)


def _read_rows(path: Path) -> object:
    """Open a file of the kit, which travels without Leadline and so has an error of its own."""
    try:
        file = RowFile(str(path)).open()
        try:
            file.begin({"device": HEADER["device"], "software": HEADER["software"]})
            return [row.get("key") for row in file.rows]
        finally:
            file.close()
    except KitError as error:
        raise InvalidInput(str(error)) from error


def _rows() -> tuple[bytes, ...]:
    return ("".join(json.dumps(row) + "\n" for row in (HEADER, OK, OK)).encode(),)


READERS = (
    Reader("outcome of a job", "execution", "runs/k.json", Form.JSON, outcomes, _read_outcome, 3),
    Reader(
        "end of an unmeasured job",
        "execution",
        "runs/k.ended",
        Form.TEXT,
        texts("0 1767225600 1767225700\n"),
        _read_end,
        1,
    ),
    Reader(
        "changed limit of a job", "execution", "k.control", Form.JSON, texts('{"walltime_s": 60.5}'), read_walltime_s, 1
    ),
    Reader(
        "report of the hook",
        "execution",
        "hook-1.json",
        Form.JSON,
        texts(json.dumps(REPORT), json.dumps({**REPORT, "keras": KERAS})),
        _read_report,
        3,
    ),
    Reader("progress of a job", "execution", "progress", Form.TEXT, texts(PROGRESS), _read_progress, 2),
    Reader("rows of the kit", "kit", "rows.jsonl", Form.JSON_LINES, _rows, _read_rows, 2),
)
