"""``leadline bench trace``: unmodified training scripts traced, what that costs, and how near the memory comes."""

import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks import llama_7b
from benchmarks.corpus import CORPUS, Script
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_least, at_most
from leadline.core.errors import LeadlineError
from leadline.core.graph import TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.estimators.memory.heap import live_peak_bytes
from leadline.estimators.memory.onednn import Processor
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command

MEASURED = Path(__file__).parent / "measured"
QUICK = ("digits_cnn", "vae", "resnet_amp", "char_gpt", "word_lm", "custom_function")
TRACE_TIMEOUT_S = 90.0
PEAK_HOW = (
    "live tensors when a real run's third step begins, data sets left out, and the CPU profiler's events from there"
)
SLOWEST_RATIO, PEAK_ERROR_PERCENT = 3.0, 3.0
SCRIPT_REPEATS = 1


def run(*, quick: bool = False) -> BenchmarkResult:
    """Trace the corpus, time it against bare runs, compare peaks with real ones, and time a 7B model.

    ``quick`` takes six scripts, each timed once, and leaves out MemTracker.
    """
    chosen = [script for script in CORPUS if not quick or script.name in QUICK]
    present = [script for script in chosen if not script.missing()]
    model_rows = llama_7b.llama_rows(quick=quick)
    details = [_script(script, repeats=1 if quick else SCRIPT_REPEATS) for script in present]
    absent = [
        BenchmarkRow(f"script {one.name}", None, "", how=f"not measured: {', '.join(one.missing())} is not installed")
        for one in chosen
        if one.missing()
    ]
    return BenchmarkResult(
        "trace",
        (*_script_rows(details), *_peak_rows(details), *model_rows, *absent),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine={"system": platform.platform(), "python": platform.python_version()},
        details=tuple(details),
    )


def wrong_facts(script: Script, job: TracedJob) -> list[str]:
    """Return the facts of the loop and the model that a trace has wrong, as ``field: said, not true``."""
    loop = job.loop
    pairs = [
        ("batch", loop.batch, script.batch),
        ("steps per epoch", loop.steps_per_epoch, script.steps_per_epoch),
        ("epochs", loop.epochs, script.epochs),
        ("accumulation", loop.accumulation, script.accumulation),
        ("samples", loop.samples, script.samples),
        ("evaluation batches", loop.evaluation_batches_per_epoch, script.evaluation_batches),
        ("loader workers", loop.loader_workers, script.workers),
        ("processes", loop.world_size, max(1, script.processes)),
    ]
    if not script.processes:
        pairs.append(("parameters", job.step.parameters, script.parameters + script.frozen))
    return [f"{name}: {said}, not {true}" for name, said, true in pairs if said != true]


def _script(script: Script, *, repeats: int) -> dict[str, object]:
    """Trace one script and return what came of it; a failure is a detail, not an error of the bench."""
    argv = script.command()
    workload = Workload(ModelSource(ModelKind.COMMAND, " ".join(argv), argv))
    found: dict[str, object] = {"name": script.name, "shows": script.shows}
    try:
        job, trace_s = _timed(
            lambda: trace_command(workload, runner=run_process, timeout_s=TRACE_TIMEOUT_S), repeats=repeats
        )
        found |= {"traced": True, "trace_s": trace_s, "ops": len(job.step.ops), "wrong": wrong_facts(script, job)}
        _, bare_s = _timed(
            lambda: trace_command(workload, runner=run_process, timeout_s=TRACE_TIMEOUT_S, bare=True), repeats=repeats
        )
        found["bare_s"] = bare_s
        if script.same_on_cpu:
            on_cpu = trace_command(workload, runner=run_process, device_type="cpu", timeout_s=TRACE_TIMEOUT_S)
            real_bytes, processor = _real_peak(script)
            found |= {"peak_bytes": live_peak_bytes(on_cpu.step, processor), "real_peak_bytes": real_bytes}
    except LeadlineError as error:
        found |= {"traced": found.get("traced", False), "error": str(error)}
    return found


def _timed(call: Callable[[], TracedJob], *, repeats: int) -> tuple[TracedJob, float]:
    """Return the last result and the median time of some calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        job = call()
        times.append(time.perf_counter() - start)
    return job, median(times)


def _real_peak(script: Script) -> tuple[int, Processor]:
    """Return the peak in bytes of a real run on one thread, and what it ran on."""
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        done = run_process(
            [sys.executable, str(MEASURED / "real_peak.py"), str(script.path), *script.argv],
            env={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            cwd=Path(folder),
            timeout_s=TRACE_TIMEOUT_S,
        )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LeadlineError(f"{script.name} did not run on this CPU: {last}")
    said = json.loads(lines[-1])
    return int(said["peak_bytes"]), Processor.of({"vector_bytes": said["vector_bytes"], "threads": 1})


def _script_rows(details: list[dict[str, object]]) -> list[BenchmarkRow]:
    traced = [one for one in details if one["traced"]]
    failed = [f"{one['name']} ({one['error']})" for one in details if not one["traced"]]
    wrong = [f"{one['name']} ({', '.join(map(str, one['wrong']))})" for one in traced if one["wrong"]]  # type: ignore[call-overload]
    rows = [
        at_least("scripts traced", len(traced), len(details), "scripts", n=len(details), how="; ".join(failed)),
        at_least(
            "scripts with every fact right", len(traced) - len(wrong), len(details), "scripts", n=len(details),
            how="; ".join(wrong),
        ),
    ]  # fmt: skip
    ratios = {str(one["name"]): _number(one, "trace_s") / _number(one, "bare_s") for one in traced if "bare_s" in one}
    if ratios:
        slowest = max(ratios, key=lambda name: ratios[name])
        how = (
            f"whole processes, PyTorch's own fake dispatch unrecorded; {slowest}; median {median(ratios.values()):.2f}"
        )
        rows.append(
            at_most("slowest trace ÷ its bare run", ratios[slowest], SLOWEST_RATIO, "times", n=len(ratios), how=how)
        )
    return rows


def _peak_rows(details: list[dict[str, object]]) -> list[BenchmarkRow]:
    errors = {
        str(one["name"]): 100 * abs(_number(one, "peak_bytes") / _number(one, "real_peak_bytes") - 1)
        for one in details
        if "real_peak_bytes" in one
    }
    return [
        at_most(f"peak of live bytes, {name}", error, PEAK_ERROR_PERCENT, "%", how=PEAK_HOW)
        for name, error in errors.items()
    ]


def _number(detail: dict[str, object], name: str) -> float:
    value = detail[name]
    return float(value) if isinstance(value, (int, float)) else float("nan")
