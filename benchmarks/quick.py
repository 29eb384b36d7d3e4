"""``bench quick``: ratios that must not grow, measured in less than a minute, for continuous integration.

Each row divides the processor time of Leadline by that of plain work in the same run, so that it holds on any machine.
A row fails when its ratio is more than ``SLACK`` times the one in ``quick.json``.
``python -m benchmarks.quick`` measures them again and writes that file.
"""

import importlib.util
import json
import math
import resource
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.corpus import CORPUS
from benchmarks.dnn.pricing import layers
from benchmarks.memory.linear import chain_graph
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_most
from benchmarks.speed import ACCELERATE_SCRIPT, ENVIRONMENT, LLAMA_7B
from leadline.app.composition import process_runner
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import Job, Place, Policy
from leadline.estimators.memory.device import peak_memory
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationKernels
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.schedulers.slurm.parsing import read_queue
from leadline.training.shipped_models import shipped_op_utilization

BASELINE = Path(__file__).with_name("quick.json")
SLACK = 1.5
"""On virtual cores of a shared host these ratios vary by up to a third from run to run."""
ROUNDS = 4
"""A ratio above its limit is measured again, at most so often in all: a real regression stays above it."""
LAYERS = 67
"""Transformer layers of 15 ops each: some 1,000 ops."""
JOBS = 200


@dataclass(frozen=True, slots=True)
class RatioCase:
    """Two pieces of work that are timed in turn, each ``repeats`` times."""

    name: str
    measured: Callable[[], object]
    reference: Callable[[], object]
    repeats: int

    def seconds(self, limit: float) -> tuple[float, float, int]:
        """Return the least processor seconds of each, and how often each was timed to keep their ratio in the limit."""
        measured_s = reference_s = math.inf
        for timed in range(1, ROUNDS * self.repeats + 1):
            # other programs on the machine only ever add time
            measured_s = min(measured_s, _seconds(self.measured))
            reference_s = min(reference_s, _seconds(self.reference))
            if timed % self.repeats == 0 and measured_s <= limit * reference_s:
                break
        return measured_s, reference_s, timed


def run(*, quick: bool = False) -> BenchmarkResult:
    """Measure all ratios and compare them with the committed ones."""
    baseline = msgspec.json.decode(BASELINE.read_bytes(), type=dict[str, float]) if BASELINE.exists() else {}
    with tempfile.TemporaryDirectory(prefix="leadline-quick-") as folder:
        rows = [_row(case, baseline.get(case.name)) for case in cases(Path(folder), quick=quick)]
    return BenchmarkResult("quick", tuple(rows))


def cases(folder: Path, *, quick: bool = False) -> Iterator[RatioCase]:
    """Yield the ratios; ``quick`` leaves out those that start PyTorch."""
    config = folder / "config.json"
    config.write_text(json.dumps(LLAMA_7B), encoding="utf-8")
    estimate = _leadline("estimate", str(config), "--steps", "1", "--on", "A100 SXM4 80GB", "--json")
    yield RatioCase("help ÷ bare Python", _leadline("--help"), _python("pass"), 5)
    yield RatioCase("jobs ÷ bare Python", _leadline("jobs"), _python("pass"), 5)
    yield RatioCase("systems list ÷ bare Python", _leadline("systems", "list"), _python("pass"), 5)
    yield RatioCase("estimate of a config.json ÷ import of numpy", estimate, _python("import numpy"), 4)
    if not quick and all(importlib.util.find_spec(name) for name in ("accelerate", "transformers", "torch")):
        yield RatioCase("estimate of a config.json ÷ accelerate's", estimate, _python(ACCELERATE_SCRIPT, folder), 2)
    if not quick and importlib.util.find_spec("torch"):
        script = next(script for script in CORPUS if script.name == "digits_cnn")
        trace = _leadline("estimate", "--on", "A100 SXM4 80GB", "--json", "--", *script.command())
        yield RatioCase("trace of a script ÷ import of torch", trace, _python("import torch"), 2)
    graph, device, catalog = layers(LAYERS, alike=False), TomlCatalog(None).device("A100 SXM4 80GB"), TomlCatalog(None)
    yield RatioCase(
        "pricing 1,000 ops ÷ numpy work",
        lambda: OpUtilizationKernels(shipped_op_utilization(), device, graph, devices=catalog.device).step_s(graph),
        _numpy_work, 5,
    )  # fmt: skip
    chain = chain_graph(10_000)
    yield RatioCase("peak of 10,000 ops ÷ numpy work", lambda: peak_memory(chain), _numpy_work, 10)
    lines = [f"{number}|PENDING|1795349354|N/A|5:00|0:00|1||leadline:k|nap-k|Priority" for number in range(50_000)]
    listing, ids = "\n".join(lines), [str(number) for number in range(50_000)]
    yield RatioCase("queue of 50,000 jobs ÷ numpy work", lambda: read_queue(listing, ids), _numpy_work, 5)
    yield RatioCase("journal of jobs ÷ plain SQLite", lambda: _journal(folder), lambda: _plain_sqlite(folder), 10)


def _row(case: RatioCase, baseline: float | None) -> BenchmarkRow:
    limit = math.inf if baseline is None else SLACK * baseline
    try:
        measured_s, reference_s, timed = case.seconds(limit)
    except LeadlineError as error:
        return BenchmarkRow(case.name, None, "times", how=str(error))
    ratio = measured_s / reference_s
    how = f"{measured_s:.3g} s ÷ {reference_s:.3g} s, the least of {timed} in turn"
    if baseline is None:
        return BenchmarkRow(case.name, ratio, "times", n=timed, how=f"{how}; no committed ratio")
    return at_most(case.name, ratio, limit, "times", baseline=baseline, n=timed, how=how)


def _leadline(*words: str) -> Callable[[], object]:
    return lambda: _ended([sys.executable, "-m", "leadline", *words])


def _python(source: str, *words: object) -> Callable[[], object]:
    return lambda: _ended([sys.executable, "-c", source, *map(str, words)])


def _ended(argv: list[str]) -> None:
    ended = process_runner()(argv, env=ENVIRONMENT, timeout_s=120)
    if ended.returncode != 0:
        raise LeadlineError(f"a measured command failed: {ended.stderr.strip()[-300:]}")


def _numpy_work() -> None:
    """Sort and sum a million numbers: work whose time no change of Leadline can move."""
    numbers = np.random.default_rng(0).random(1_000_000)
    np.sort(numbers).cumsum()


def _journal(folder: Path) -> None:
    """Add jobs to a new journal and read them back, one transaction for each."""
    path = folder / "journal.sqlite"
    path.unlink(missing_ok=True)
    policy = Policy((Place("cluster", "short"),))
    with PlaneJournal(path) as journal:
        for number in range(JOBS):
            journal.add([Job(f"j{number:04}", JobSpec("train", ("true",), ResourceSpec()), policy)])
        journal.open_jobs()


def _plain_sqlite(folder: Path) -> None:
    """Insert and read as many rows with the same journal mode."""
    path = folder / "plain.sqlite"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE job (key TEXT PRIMARY KEY, document TEXT)")
    for number in range(JOBS):
        with connection:
            connection.execute("INSERT INTO job VALUES (?, ?)", (f"j{number:04}", "x" * 500))
    connection.execute("SELECT * FROM job").fetchall()
    connection.close()


def _seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of a piece of work and of its processes, which a busy machine hardly stretches."""
    began_s = _processor_s()
    work()
    return _processor_s() - began_s


def _processor_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> int:
    """Measure the ratios and write them as the new baseline."""
    rows = run().rows
    ratios = {row.name: round(row.value, 3) for row in rows if row.value is not None}
    BASELINE.write_text(json.dumps(ratios, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(ratios)} ratios written to {BASELINE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
