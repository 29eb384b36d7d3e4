"""``bench trace``: unmodified training scripts traced: correct facts, time and accuracy of memory."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks import llama_7b
from benchmarks.corpus import CORPUS, Script
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_least, at_most
from leadline.core.errors import LeadlineError
from leadline.core.graph import TracedJob
from leadline.core.processes import CompletedProcess
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
    """Trace the corpus, time it against bare runs, compare memory peaks with real ones, and time a 7B model.

    ``quick`` takes six scripts, each timed once, and leaves out MemTracker.
    """
    chosen = [script for script in CORPUS if not quick or script.name in QUICK]
    present = [script for script in chosen if not script.missing()]
    model_rows = llama_7b.llama_rows(quick=quick)
    details = [_script(script, repeats=1 if quick else SCRIPT_REPEATS) for script in present]
    absent = [
        BenchmarkRow(f"script {script.name}", None, "", how=f"not measured: {', '.join(missing)} is not installed")
        for script in chosen
        if (missing := script.missing())
    ]
    return BenchmarkResult(
        "trace",
        (*_script_rows(details), *_peak_rows(details), *model_rows, *absent),
        details=tuple(details),
    )


def wrong_facts(script: Script, job: TracedJob) -> list[str]:
    """Return the facts of the loop and the model that a trace has wrong, as ``field: traced, not true``."""
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
    return [f"{name}: {traced}, not {true}" for name, traced, true in pairs if traced != true]


def _script(script: Script, *, repeats: int) -> dict[str, object]:
    """Trace one script and return its details; a failure is a detail, not an error of the benchmark."""
    argv = script.command()
    workload = Workload(ModelSource(ModelKind.COMMAND, " ".join(argv), argv), trace_limit_s=TRACE_TIMEOUT_S)
    detail: dict[str, object] = {"name": script.name, "shows": script.shows}
    try:
        job, trace_s = _timed(lambda: trace_command(workload, runner=run_process), repeats=repeats)
        detail |= {"traced": True, "trace_s": trace_s, "ops": len(job.step.ops), "wrong": wrong_facts(script, job)}
        _, bare_s = _timed(lambda: trace_command(workload, runner=run_bare), repeats=repeats)
        detail["bare_s"] = bare_s
        if script.same_on_cpu:
            on_cpu = trace_command(workload, runner=run_process, device_type="cpu")
            real_bytes, processor = _real_peak(script)
            detail |= {"peak_bytes": live_peak_bytes(on_cpu.step, processor), "real_peak_bytes": real_bytes}
    except LeadlineError as error:
        detail |= {"traced": detail.get("traced", False), "error": str(error)}
    return detail


def run_bare(
    argv: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout_s: float | None = None,
) -> CompletedProcess:
    """Run a trace's worker with the recording left out."""
    bare = [argv[0], str(MEASURED / "bare_worker.py"), *argv[1:]]
    return run_process(bare, env=env, cwd=cwd, stdin=stdin, timeout_s=timeout_s)


def _timed(call: Callable[[], TracedJob], *, repeats: int) -> tuple[TracedJob, float]:
    """Return the last result and the median time of some calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        job = call()
        times.append(time.perf_counter() - start)
    return job, median(times)


def _real_peak(script: Script) -> tuple[int, Processor]:
    """Return the peak in bytes of a real run on one thread, and the processor's registers."""
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        done = run_process(
            [sys.executable, str(MEASURED / "real_peak.py"), str(script.path), *script.argv],
            env={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            cwd=Path(folder),
            timeout_s=TRACE_TIMEOUT_S,
        )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LeadlineError(f"{script.name} did not run on this CPU: {last}")
    measured = json.loads(lines[-1])
    return int(measured["peak_bytes"]), Processor.of({"vector_bytes": measured["vector_bytes"], "threads": 1})


def _script_rows(details: list[dict[str, object]]) -> list[BenchmarkRow]:
    traced = [detail for detail in details if detail["traced"]]
    failed = [f"{detail['name']} ({detail['error']})" for detail in details if not detail["traced"]]
    wrong = [f"{detail['name']} ({', '.join(map(str, detail['wrong']))})" for detail in traced if detail["wrong"]]  # type: ignore[call-overload]
    rows = [
        at_least("scripts traced", len(traced), len(details), "scripts", n=len(details), how="; ".join(failed)),
        at_least(
            "scripts with every fact right", len(traced) - len(wrong), len(details), "scripts", n=len(details),
            how="; ".join(wrong),
        ),
    ]  # fmt: skip
    ratios = {
        str(detail["name"]): _number(detail, "trace_s") / _number(detail, "bare_s")
        for detail in traced
        if "bare_s" in detail
    }
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
        str(detail["name"]): 100 * abs(_number(detail, "peak_bytes") / _number(detail, "real_peak_bytes") - 1)
        for detail in details
        if "real_peak_bytes" in detail
    }
    return [
        at_most(f"peak of live bytes, {name}", error, PEAK_ERROR_PERCENT, "%", how=PEAK_HOW)
        for name, error in errors.items()
    ]


def _number(detail: dict[str, object], name: str) -> float:
    value = detail[name]
    return float(value) if isinstance(value, (int, float)) else float("nan")
