"""Rows about facts of a job: loading, evaluation, libraries, units, programs and probes."""

import contextlib
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.results import BenchmarkRow, at_most
from benchmarks.trust.fact_scripts import (
    ACCELERATED,
    LIBRARY_LOOP,
    LIBRARY_SCRIPT,
    LOOP,
    TRAINER,
    TWO_LOSSES,
    WAITING,
)
from leadline.app import settings
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.kept_probes import find_probe
from leadline.app.jobs.job_request import JobRequest, resolve_request
from leadline.app.jobs.plane_options import PlaneOptions, build_policy
from leadline.app.jobs.probe import ProbeLimits, probe
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.campaigns.budgets import parse_budget
from leadline.core.errors import InvalidInput
from leadline.core.graph import LoopFacts
from leadline.core.processes import CompletedProcess
from leadline.core.units import parse_bytes, parse_duration_s
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command

DEVICE = "A100 SXM4 80GB"
SAMPLE_S, BATCH = 0.005, 8
"""Time of one sample in the script that waits for its data, and its batch."""
LOADING_ERROR_PERCENT = 15.0
PROBED_LOOP = "import time\nfor step in range(2000):\n    time.sleep(0.005)\n"


def rows() -> list[BenchmarkRow]:
    """Return all rows about facts that need no busy machine."""
    return [
        invented_loading(), measured_loading(), users_loading(), guessed_evaluations(), library_loops(),
        bare_numbers(), programs(), probes(),
    ]  # fmt: skip


def invented_loading() -> BenchmarkRow:
    """Return the loading that is added to a model without a loader."""
    with _folder() as folder:
        (folder / "net.py").write_text("import torch\n\ndef build():\n    return torch.nn.Linear(8, 8)\n")
        times_s = []
        for load_s in (None, 0.0):
            options = WorkloadOptions(input="4096x8", samples=10**6, load_s=load_s)
            step = estimate(read_workload(["net.py:build"], options), toolbox(), on=[DEVICE]).estimates[0].step_s
            times_s.append(step.point if step else float("inf"))
    return at_most("loading invented without a loader", (times_s[0] - times_s[1]) * 1e3, 0, "ms a step",
                   how="a model function at batch 4,096, with and without --load-s 0")  # fmt: skip


def measured_loading() -> BenchmarkRow:
    """Return the error of the loading time of a data set that waits, on whatever else the machine does."""
    measured = _trace(WAITING).loading
    error = abs((measured.batch_s if measured else 0.0) / (SAMPLE_S * BATCH) - 1) * 100
    return at_most("error of the loading of a data set that waits", error, LOADING_ERROR_PERCENT, "%",
                   n=measured.batches if measured else 0, how=f"samples of {SAMPLE_S * 1e3:g} ms, traced")  # fmt: skip


def users_loading() -> BenchmarkRow:
    """Return how far a step is from the loading time that the user gives."""
    with _folder() as folder:
        (folder / "train.py").write_text(WAITING)
        workload = read_workload((sys.executable, "train.py"), WorkloadOptions(load_s=2.0))
        step = estimate(workload, toolbox(), on=[DEVICE]).estimates[0].step_s
    error = abs((step.point if step else 0.0) / 2.0 - 1) * 100
    return at_most("error of a step that loads for --load-s 2", error, 1.0, "%", how="no workers, a tiny model")


def guessed_evaluations() -> BenchmarkRow:
    """Count scripts whose evaluation batches per epoch are wrong."""
    cases = [
        (TRAINER, ("no", "none"), 0), (TRAINER, ("no", "set"), 0), (TRAINER, ("epoch", "set"), 5),
        (TRAINER, ("steps", "set"), 20), (ACCELERATED, (), 0), (LOOP.format(before="", after="pass"), (), 0),
        (LOOP.format(before="unused = DataLoader(held_out, 8)", after="pass"), (), 0),
        (LOOP.format(before="held = DataLoader(held_out, 8)", after="evaluate(held)"), (), 5),
    ]  # fmt: skip
    loops = [(_trace(code, *words), batches) for code, words, batches in cases]
    wrong = [
        loop
        for loop, batches in loops
        if (loop.evaluation_batches_per_epoch or 0) != batches or (loop.evaluation_loading is None) == bool(batches)
    ]
    return at_most("scripts with a wrong evaluation", len(wrong), 0, "scripts", n=len(cases),
                   how="Hugging Face Trainer, accelerate and plain loops, with and without evaluation")  # fmt: skip


def library_loops() -> BenchmarkRow:
    """Count scripts whose facts change with the place where their libraries lie."""
    with _folder() as folder:
        libraries, vendor = folder / "libraries", folder / "vendor"
        libraries.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.endswith((".dist-info", ".pth")):
                (libraries / entry.name).symlink_to(entry)
        (vendor / "trainlib-1.0.dist-info").mkdir(parents=True)
        (vendor / "trainlib.py").write_text(LIBRARY_LOOP)
        (vendor / "trainlib-1.0.dist-info" / "RECORD").write_text("trainlib.py,,\n")
        loops = [
            (_trace(TWO_LOSSES, path=libraries), (1, 10, 3)),
            (_trace(LIBRARY_SCRIPT, path=vendor), (1, 10, None)),
        ]
    wrong = sum((loop.accumulation, loop.steps_per_epoch, loop.epochs) != truth for loop, truth in loops)
    return at_most("scripts with loops of a library", wrong, 0, "scripts", n=len(loops),
                   how="torch on PYTHONPATH without metadata, and a loop in a --target folder")  # fmt: skip


def bare_numbers() -> BenchmarkRow:
    """Count durations, sizes and budgets without a unit that are accepted."""
    readers: Sequence[Callable[[], object]] = (
        lambda: parse_duration_s("12"), lambda: parse_duration_s("0.5"), lambda: parse_bytes("16"),
        lambda: parse_budget("20"), lambda: build_policy((), PlaneOptions(deadline="12")),
        lambda: build_policy((), PlaneOptions(checkpoint_before="2")),
    )  # fmt: skip
    accepted = len(readers) - sum(map(_is_refused, readers))
    return at_most("values without a unit that are accepted", accepted, 0, "values", n=len(readers),
                   how="durations, sizes, budgets and deadlines")  # fmt: skip


def programs() -> BenchmarkRow:
    """Count files that are submitted as a command although they cannot be run."""
    with _folder() as folder:
        names = ("config.json", "./notes.txt", "train.py")
        for name in names:
            (folder / name).write_text("{}")
        requests = [JobRequest((name,)) for name in names]
        accepted = sum(not _is_refused(lambda: resolve_request(each, toolbox())) for each in requests)  # noqa: B023
    return at_most("files submitted as a command", accepted, 0, "files", n=len(names), how="submit --dry-run FILE")


def probes() -> BenchmarkRow:
    """Count commands whose probe is not used by their next estimate, or is used by another one's."""
    with _folder() as folder:
        (folder / "solve.py").write_text(f"import net\n{PROBED_LOOP}")
        (folder / "net.py").write_text("width = 8\n")
        probe((sys.executable, "solve.py"), ProbeLimits(time_s=0.5))
        states = [_has_probe("solve.py"), not _has_probe("solve.py", "--fast")]
        (folder / "net.py").write_text("width = 16\n")
        states.append(not _has_probe("solve.py"))
        (folder / "net.py").write_text("width = 8\n")
        states.append(_has_probe("solve.py"))
        (folder / "solve.py").write_text(PROBED_LOOP + "print()\n")
        states.append(not _has_probe("solve.py"))
    return at_most("probes that are not used, or wrongly", states.count(False), 0, "commands", n=len(states),
                   how="the same command, other arguments, another module that it imports, another script")  # fmt: skip


def _has_probe(*words: str) -> bool:
    try:
        return find_probe(read_workload((sys.executable, *words))) is not None
    except InvalidInput:  # a file has changed since
        return False


def _is_refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except InvalidInput:
        return True
    return False


def _trace(code: str, *arguments: str, path: Path | None = None) -> LoopFacts:
    """Return the facts of a script, traced with a folder on ``PYTHONPATH``."""

    def run(
        argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, cwd: Path | None = None,
        stdin: str | None = None, timeout_s: float | None = None,
    ) -> CompletedProcess:  # fmt: skip
        place = {"PYTHONPATH": str(path)} if path else {}
        return run_process(argv, env={**(env or {}), **place}, cwd=cwd, stdin=stdin, timeout_s=timeout_s)

    with tempfile.TemporaryDirectory(prefix="leadline-facts-") as folder:
        script = Path(folder, "train.py")
        script.write_text(code)
        words = (sys.executable, str(script), *arguments)
        workload = Workload(ModelSource(ModelKind.COMMAND, "train.py", words))
        return trace_command(workload, runner=run, cwd=Path(folder)).loop


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Work in an empty folder, with the data folder in it."""
    before, data = Path.cwd(), os.environ.get(settings.DATA_DIR_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="leadline-facts-") as name:
        os.chdir(name)
        os.environ[settings.DATA_DIR_VARIABLE] = str(Path(name, "data"))
        try:
            yield Path(name)
        finally:
            os.chdir(before)
            os.environ.pop(settings.DATA_DIR_VARIABLE)
            if data is not None:
                os.environ[settings.DATA_DIR_VARIABLE] = data
