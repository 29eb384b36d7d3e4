"""``leadline bench trace``: unmodified training scripts traced, what that costs, and how near the memory comes."""

import json
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from leadline.bench.corpus import CORPUS, Script
from leadline.bench.rows import BenchResult, BenchRow, at_least, at_most
from leadline.core.errors import LeadlineError
from leadline.core.graph import TracedJob
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Precision, Workload
from leadline.estimators.heap import live_peak_bytes
from leadline.estimators.onednn import Processor
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command, trace_function

MEASURED = Path(__file__).parent / "measured"
QUICK = ("digits_cnn", "vae", "resnet_amp", "char_gpt", "word_lm", "custom_function")
TRACE_TIMEOUT_S = 90.0
PEAK_HOW = (
    "live tensors when a real run's third step begins, data sets left out, and the CPU profiler's events from there"
)
SLOWEST_RATIO, PEAK_ERROR_PERCENT = 3.0, 3.0
SCRIPT_REPEATS, MODEL_REPEATS = 1, 3
STEP_RATIO, TRACKER_RATIO, RESIDENT_GIB = 2.5, 5.0, 1.0


def run(*, quick: bool = False) -> BenchResult:
    """Trace the corpus, time it against bare runs, compare peaks with real ones, and time a 7B model.

    ``quick`` takes six scripts, each timed once, and leaves out MemTracker.
    """
    chosen = [script for script in CORPUS if not quick or script.name in QUICK]
    present = [script for script in chosen if not script.missing()]
    model_rows = _model_rows(quick=quick)
    details = [_script(script, repeats=1 if quick else SCRIPT_REPEATS) for script in present]
    absent = [
        BenchRow(f"script {one.name}", None, "", how=f"not measured: {', '.join(one.missing())} is not installed")
        for one in chosen
        if one.missing()
    ]
    return BenchResult(
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


def _script_rows(details: list[dict[str, object]]) -> list[BenchRow]:
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


def _peak_rows(details: list[dict[str, object]]) -> list[BenchRow]:
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


def _model_rows(*, quick: bool) -> list[BenchRow]:
    """Time one training step of a 7B model: as a module and as a script, on bare fake tensors, under MemTracker."""
    model, script = MEASURED / "llama7b.py", MEASURED / "llama7b_train.py"
    workload = Workload(
        ModelSource(ModelKind.FUNCTION, f"{model}:build"),
        inputs=(InputShape((1, 2048), "int64"),),
        precision=Precision.BF16,
        optimizer=Optimizer.ADAMW,
    )
    command = Workload(ModelSource(ModelKind.COMMAND, str(script), (sys.executable, str(script))))
    seconds: dict[str, list[float]] = {"module": [], "script": [], "bare": [], "memtracker": []}
    try:
        for _ in range(1 if quick else MODEL_REPEATS):
            job, once_s = _timed(lambda: trace_function(workload, runner=run_process), repeats=1)
            seconds["module"].append(once_s)
            seconds["script"].append(_timed(lambda: trace_command(command, runner=run_process), repeats=1)[1])
            seconds["bare"].append(_fake_step(model, "bare"))
            resident_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
            if not quick:
                seconds["memtracker"].append(_fake_step(model, "memtracker"))
    except LeadlineError as error:
        return [BenchRow("7B model", None, "", target=STEP_RATIO, met=False, how=str(error))]
    return _model_figures(job, {name: median(times) for name, times in seconds.items() if times}, resident_gib)


def _model_figures(job: TracedJob, seconds: dict[str, float], resident_gib: float) -> list[BenchRow]:
    """Return the rows of the 7B model from the median seconds of whole processes."""
    module_s, script_s, bare_s = seconds["module"], seconds["script"], seconds["bare"]
    rows = [
        at_most("7B module, trace ÷ bare fake step", module_s / bare_s, STEP_RATIO, "times", baseline=bare_s,
                how=f"whole processes; {job.step.parameters:,} parameters, {len(job.step.ops)} ops, {module_s:.1f} s"),
        at_most("7B script, trace ÷ bare fake step", script_s / bare_s, STEP_RATIO, "times", baseline=bare_s,
                how=f"whole processes; three steps of the script in {script_s:.1f} s"),
        at_most("7B model, resident", resident_gib, RESIDENT_GIB, "GiB", how="the largest process, bare one too"),
    ]  # fmt: skip
    for name, ours_s in (("module", module_s), ("script", script_s)):
        title = f"7B {name}, MemTracker ÷ trace"
        if "memtracker" in seconds:
            how = f"whole processes, one step under MemTracker in {seconds['memtracker']:.1f} s"
            rows.append(at_least(title, seconds["memtracker"] / ours_s, TRACKER_RATIO, "times", how=how))
        else:
            rows.append(BenchRow(title, None, "times", target=TRACKER_RATIO, how="not measured in a quick run"))
    return rows


def _fake_step(model: Path, how: str) -> float:
    start = time.perf_counter()
    done = run_process(
        [sys.executable, str(MEASURED / "fake_step.py"), str(model), how, "1", "2048"], timeout_s=4 * TRACE_TIMEOUT_S
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LeadlineError(f"the {how} fake step did not run: {last}")
    return time.perf_counter() - start
