"""One training step of a 7B model: traced as a module and as a script, on bare fake tensors, and under MemTracker."""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.results import BenchmarkRow, at_least, at_most
from leadline.core.errors import LeadlineError
from leadline.core.graph import TracedJob
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Precision, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command, trace_function

MEASURED = Path(__file__).parent / "measured"
MODEL, SCRIPT = MEASURED / "llama7b.py", MEASURED / "llama7b_train.py"
TIMEOUT_S = 360.0
REPEATS = 3
STEP_RATIO, TRACKER_RATIO, RESIDENT_GIB = 2.5, 5.0, 1.0


def llama_rows(*, quick: bool = False) -> list[BenchmarkRow]:
    """Compare the time of module and script with a bare fake step and, unless ``quick``, with MemTracker."""
    command = Workload(ModelSource(ModelKind.COMMAND, str(SCRIPT), (sys.executable, str(SCRIPT))))
    calls: dict[str, Callable[[], object]] = {
        "module": trace_llama, "script": lambda: trace_command(command, runner=run_process), "bare": _bare,
    }  # fmt: skip
    if not quick:
        calls["memtracker"] = tracked
    try:
        seconds, resident_gib = _timed(calls, repeats=1 if quick else REPEATS)
    except LeadlineError as error:
        return [BenchmarkRow("7B model", None, "", target=STEP_RATIO, met=False, how=str(error))]
    how = "the largest process, bare one too"
    return [
        *_step_rows(seconds),
        at_most("7B model, resident", resident_gib, RESIDENT_GIB, "GiB", how=how),
        _tracker_row("module", seconds),
        _tracker_row("script", seconds),
    ]


def memory_rows(*, quick: bool = False) -> list[BenchmarkRow]:
    """Compare the time of the module's memory peak with MemTracker; a quick run leaves MemTracker out."""
    calls: dict[str, Callable[[], object]] = {"module": lambda: peak_memory(trace_llama().step)}
    if not quick:
        calls["memtracker"] = tracked
    try:
        seconds, resident_gib = _timed(calls, repeats=1 if quick else REPEATS)
    except LeadlineError as error:
        return [BenchmarkRow("7B model", None, "", target=TRACKER_RATIO, met=False, how=str(error))]
    how = f"the largest process of the trace; answered in {seconds['module']:.1f} s"
    return [_tracker_row("module", seconds), at_most("7B model, resident", resident_gib, RESIDENT_GIB, "GiB", how=how)]


def trace_llama() -> TracedJob:
    """Trace one step of the module with AdamW in bfloat16."""
    workload = Workload(
        ModelSource(ModelKind.FUNCTION, f"{MODEL}:build"),
        inputs=(InputShape((1, 2048), "int64"),),
        precision=Precision.BF16,
        optimizer=Optimizer.ADAMW,
    )
    return trace_function(workload, runner=run_process)


def tracked() -> None:
    """Run the same step on fake tensors under MemTracker."""
    _fake_step("memtracker")


def _bare() -> None:
    _fake_step("bare")


def _fake_step(how: str) -> None:
    done = run_process(
        [sys.executable, str(MEASURED / "fake_step.py"), str(MODEL), how, "1", "2048"], timeout_s=TIMEOUT_S
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LeadlineError(f"the {how} fake step did not run: {last}")


def _timed(calls: dict[str, Callable[[], object]], *, repeats: int) -> tuple[dict[str, float], float]:
    """Return the median seconds of each call, interleaved, and the largest process in GiB before MemTracker ran."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    resident_gib = 0.0
    for number in range(repeats):
        for name, call in calls.items():
            if not number and name == "memtracker":
                resident_gib = _largest_gib()
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    return {name: median(seconds) for name, seconds in times.items()}, resident_gib or _largest_gib()


def _largest_gib() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def _step_rows(seconds: dict[str, float]) -> list[BenchmarkRow]:
    bare_s = seconds["bare"]
    descriptions = {
        "module": f"{seconds['module']:.1f} s",
        "script": f"three steps of the script in {seconds['script']:.1f} s",
    }
    return [
        at_most(f"7B {name}, trace ÷ bare fake step", seconds[name] / bare_s, STEP_RATIO, "times", baseline=bare_s,
                how=f"whole processes; {how}")
        for name, how in descriptions.items()
    ]  # fmt: skip


def _tracker_row(name: str, seconds: dict[str, float]) -> BenchmarkRow:
    title = f"7B {name}, MemTracker ÷ trace"
    if "memtracker" not in seconds:
        return BenchmarkRow(title, None, "times", target=TRACKER_RATIO, how="not measured in a quick run")
    how = f"whole processes, one step under MemTracker in {seconds['memtracker']:.1f} s"
    return at_least(title, seconds["memtracker"] / seconds[name], TRACKER_RATIO, "times", how=how)
