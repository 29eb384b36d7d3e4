"""``leadline bench probe``: forecasts from a few steps against whole runs, and what watching a script costs it."""

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.results import BenchmarkResult, BenchmarkRow, at_least, at_most
from leadline.app.demo import run as demo
from leadline.app.jobs.probe import ProbeLimits, probe
from leadline.core.errors import LeadlineError
from leadline.core.progress import Probe
from leadline.execution.processes import run_process
from leadline.execution.wrapper.instruments import HOOK_FOLDER

HERE = Path(__file__).parent
DEMO_JOBS = Path(demo.__file__).with_name("jobs")
"""Folder of the demo's scripts; recorded runs name them ``jobs/NAME.py``."""
MEDIAN_ERROR_PERCENT, WORST_ERROR_PERCENT = 10.0, 25.0
WITHIN = 0.7
"""Share of the 90 % intervals that must hold the measured time; one of few may miss."""
OVERHEAD_PERCENT = 3.0
STARTUP_MS = 50.0
REPEATS = 11
TIMEOUT_S = 600.0
PROBE_S = 4.0


def script_file(name: str) -> Path:
    """Return the file of a script: relative to this folder, or ``jobs/NAME.py`` for a script of the demo."""
    folder, _, file = name.partition("/")
    return DEMO_JOBS / file if folder == "jobs" else HERE / name


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """One unmodified job: its words after the interpreter, and the module that it needs."""

    name: str
    words: tuple[str, ...]
    needs: str = ""
    program: str = sys.executable

    def command(self) -> tuple[str, ...]:
        """Return the command line."""
        return (self.program, str(script_file(self.words[0])), *self.words[1:])


JOBS = (
    ProbeJob("numpy, loops by hand", ("probed/numpy_mlp.py", "--epochs", "400"), "numpy"),
    ProbeJob("scikit-learn, partial_fit", ("probed/partial_fit.py", "--passes", "60"), "sklearn"),
    ProbeJob("shell, reported steps", ("probed/steps.sh", "200"), program="sh"),
    ProbeJob("Keras 3 on PyTorch", ("probed/keras_dense.py", "--epochs", "60"), "keras"),
    ProbeJob("PyTorch, MLP", ("jobs/tumour_mlp.py", "--epochs", "150"), "torch"),
    ProbeJob("PyTorch, CNN", ("jobs/digits_cnn.py",), "torch"),
    ProbeJob("PyTorch, transformer", ("jobs/text_transformer.py",), "torch"),
    ProbeJob("PyTorch, while True", ("scripts/char_gpt.py", "--max_iters", "600"), "torch"),
)
QUICK = ("numpy, loops by hand", "scikit-learn, partial_fit", "shell, reported steps")


def run(*, quick: bool = False) -> BenchmarkResult:
    """Probe each job and run it whole; time a job of short loops with and without the hook.

    ``quick`` takes three jobs.
    """
    chosen = [job for job in JOBS if not quick or job.name in QUICK]
    present = [job for job in chosen if not job.needs or importlib.util.find_spec(job.needs)]
    rows, details = [], []
    for job in present:
        detail = compare_probe(job)
        details.append(detail)
        rows.append(_row(job, detail))
    repeats = 5 if quick else REPEATS
    rows += [_loops_overhead(repeats), _startup_overhead(repeats)]
    absent = [
        BenchmarkRow(job.name, None, "%", how=f"not measured: {job.needs} is not installed")
        for job in chosen
        if job not in present
    ]
    return BenchmarkResult(
        "probe",
        (*summary(details), *rows, *absent),
        details=tuple(details),
    )


def compare_probe(job: ProbeJob, *, time_s: float = PROBE_S) -> dict[str, object]:
    """Probe a job for ``time_s`` of its work, run it whole, probe it again; return forecast, time and error.

    Raises:
        LeadlineError: The whole run failed.
    """
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        # the forecasts before and after are averaged, as the machine's speed may drift meanwhile
        probes = [_probed(job, folder, time_s)]
        whole_s = _timed(job.command(), Path(folder))
        probes.append(_probed(job, folder, time_s))
    ranges = [
        probe.forecast.elapsed_s for probe in probes if probe.forecast.elapsed_s is not None and not probe.finished
    ]
    probe_s = max(probe.measured["elapsed_s"].value for probe in probes)
    detail: dict[str, object] = {"name": job.name, "whole_s": whole_s, "probe_s": probe_s}
    if len(ranges) < len(probes):
        unknown = probes[0].forecast.unknown.get("elapsed_s", "not measured: the job ended within the probe")
        return detail | {"how": unknown}
    point, low, high = (fmean(values) for values in zip(*((r.point, r.low, r.high) for r in ranges), strict=True))
    return detail | {
        "forecast_s": [interval.point for interval in ranges], "low_s": low, "high_s": high,
        "within": low <= whole_s <= high, "error_percent": 100 * (point / whole_s - 1),
        "how": f"{point:.1f} s ({low:.1f} – {high:.1f}) forecast before and after, {whole_s:.1f} s measured; "
        f"by `{probes[0].forecast.unit}`",
    }  # fmt: skip


def _probed(job: ProbeJob, folder: str, time_s: float) -> Probe:
    before = Path.cwd()
    os.chdir(folder)
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123 - a device, not a path
        try:
            return probe(job.command(), ProbeLimits(time_s=time_s), output=nothing.fileno())
        finally:
            os.chdir(before)


def _timed(command: Sequence[str], folder: Path) -> float:
    start = time.perf_counter()
    done = run_process(command, cwd=folder, timeout_s=TIMEOUT_S)
    took_s = time.perf_counter() - start
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LeadlineError(f"{command[1]} did not run: {last}")
    return took_s


def _row(job: ProbeJob, detail: dict[str, object]) -> BenchmarkRow:
    error = detail.get("error_percent")
    value = error if isinstance(error, float) else None
    return BenchmarkRow(f"forecast, {job.name}", value, "%", how=str(detail["how"]))


def summary(details: list[dict[str, object]]) -> list[BenchmarkRow]:
    """Return the median and the worst error over all forecast jobs, and the coverage of the intervals."""
    percents = [detail.get("error_percent") for detail in details]
    errors = [abs(percent) for percent in percents if isinstance(percent, float)]
    if not errors:
        return []
    covered = sum(bool(detail["within"]) for detail in details if "within" in detail)
    n = len(errors)
    return [
        at_most("median error of the forecasts", median(errors), MEDIAN_ERROR_PERCENT, "%", n=n),
        at_most("worst error of the forecasts", max(errors), WORST_ERROR_PERCENT, "%", n=n),
        at_least("ranges that hold the measured time", covered / n, WITHIN, "", n=n, how="90 % ranges"),
    ]


def _loops_overhead(repeats: int) -> BenchmarkRow:
    """Compare the medians of two million short iterations with and without the hook, run in turn."""
    plain, watched = _in_turn(
        ProbeJob("short loops", ("probed/short_loop.py",)), repeats, lambda printed, _: float(printed)
    )
    percent = 100 * (median(watched) / median(plain) - 1)
    how = f"2 million iterations of 0.3 µs to 0.5 µs: {median(watched):.3f} s watched, {median(plain):.3f} s plain"
    return at_most("hook, short iterations", percent, OVERHEAD_PERCENT, "%", baseline=median(plain), n=repeats, how=how)


def _startup_overhead(repeats: int) -> BenchmarkRow:
    """Compare the medians of an almost empty script with and without the hook, run in turn."""
    plain, watched = _in_turn(ProbeJob("start", ("probed/nothing.py",)), repeats, lambda _, took_s: took_s)
    how = "a script of one line, whole processes"
    return at_most(
        "hook, start-up", 1e3 * (median(watched) - median(plain)), STARTUP_MS, "ms", baseline=1e3 * median(plain),
        n=repeats, how=how,
    )  # fmt: skip


def _in_turn(job: ProbeJob, repeats: int, metric: Callable[[str, float], float]) -> tuple[list[float], list[float]]:
    """Run a job plainly and under the hook in turn; ``metric`` maps its output and seconds to a number."""
    metrics: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        paths = [str(HOOK_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        hook = {"LEADLINE_HOOK": folder, "PYTHONPATH": os.pathsep.join(paths)}
        for _ in range(repeats):
            for values, env in zip(metrics, ({}, hook), strict=True):
                start = time.perf_counter()
                done = run_process(job.command(), cwd=Path(folder), env=env, timeout_s=TIMEOUT_S)
                values.append(metric(done.stdout.strip(), time.perf_counter() - start))
    return metrics
