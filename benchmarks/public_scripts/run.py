"""``bench scripts``: public training scripts traced unmodified, compared with what real runs counted."""

import contextlib
import math
import resource
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from benchmarks.public_scripts.corpus import PublicScript, public_scripts, require_scripts, variables_set
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_least, at_most
from benchmarks.trace import run_bare
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.graph import Op, OpGraph, OpKind, TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.scripts import trace_script as trace_command

RIGHT, REFUSED = "right", "refused with the true reason"
UNKNOWN, MARKED = "steps unknown, with a note", "wrong, with a warning"
SILENT, FALSE = "silently wrong", "refused falsely"
OUTCOMES = (RIGHT, REFUSED, UNKNOWN, MARKED, SILENT, FALSE)
PRODUCTS = {OpKind.GEMM, OpKind.CONV, OpKind.ATTENTION, OpKind.RNN}
"""The ops that PyTorch's counter of operations counts too."""
FLOPS_TOLERANCE = 0.03
RIGHT_SHARE, BARE_RATIO, CPU_SECONDS = 95.0, 3.0, 60.0
TIMEOUT_S = 180.0
BARE_EVERY = 5
"""One script of so many is also run bare, to compare the times of both."""


def run(
    *,
    data: Path | None = None,
    quick: bool = False,
    only: str | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> BenchmarkResult:
    """Trace the scripts that ``data`` holds, or those whose category or name is ``only``, one on each core.

    ``quick`` leaves the bare runs out.

    Raises:
        InvalidInput: There is no folder of scripts.
    """
    data = require_scripts(data)
    scripts = [script for script in public_scripts() if only is None or only in (script.category, script.name)]
    scripts = [script for script in scripts if script.cwd(data).is_dir()]
    details = []
    with ProcessPoolExecutor() as pool:
        traces = [
            pool.submit(trace_script, script, data, with_bare=not quick and number % BARE_EVERY == 0)
            for number, script in enumerate(scripts)
        ]
        for done, trace in enumerate(traces):
            progress(done, len(scripts))
            details.append(trace.result())
    if not details:
        raise InvalidInput(f"{data} holds no script {only or ''}: run python -m benchmarks.public_scripts fetch {data}")
    return BenchmarkResult("scripts", tuple(_rows(details)), details=tuple(details))


def trace_script(script: PublicScript, data: Path, *, with_bare: bool = False) -> dict[str, object]:
    """Trace one script and compare the answer with its facts."""
    detail: dict[str, object] = {"name": script.name, "category": script.category, "repository": script.repository.name}
    argv = script.command(data)
    workload = Workload(ModelSource(ModelKind.COMMAND, " ".join(argv), argv), trace_limit_s=TIMEOUT_S)
    trace = partial(trace_command, workload)
    variables = script.environment(script.cwd(data).absolute(), data)
    with contextlib.chdir(script.cwd(data)), variables_set(variables):
        before = _cpu_s()
        try:
            job = trace(runner=run_process)
        except LeadlineError as error:
            job, reason = None, str(error)
            is_true = bool(script.refused) and script.refused.lower() in reason.lower()
            detail |= {"outcome": REFUSED if is_true else FALSE, "error": _without_folder(reason, data)}
        detail["cpu_s"] = round(_cpu_s() - before, 2)
        if job is None:
            return detail
        if with_bare:
            before = _cpu_s()
            with contextlib.suppress(LeadlineError):
                trace(runner=run_bare)
                detail["bare_cpu_s"] = round(_cpu_s() - before, 2)
    return detail | judge(script, job) | {"notes": [_without_folder(note, data) for note in job.notes]}


def _without_folder(text: str, data: Path) -> str:
    """Return a text of an answer for the results, which name no folder of this machine."""
    return text.replace(str(data.absolute()), "DIR")


def judge(script: PublicScript, job: TracedJob) -> dict[str, object]:
    """Return the outcome of an answer, and which facts are wrong, as ``fact: traced, not true``."""
    loop, counted = job.loop, script.counted
    steps = None if None in (loop.steps_per_epoch, loop.epochs) else round(loop.steps_per_epoch * loop.epochs, 6)  # type: ignore[operator]
    notes = " ".join(job.notes)
    wrong, marked = [], True

    def compare(
        fact: str, traced: float | None, true: float | None, words: Sequence[str], tolerance: float = 0
    ) -> None:
        nonlocal marked
        if true is None or (traced is not None and abs(traced - true) <= tolerance * true):
            return
        wrong.append(f"{fact}: {traced}, not {true}")
        marked &= traced is None or any(word in notes for word in words)

    compare("steps", steps, script.steps, ("assuming", "assumed", "unknown", "depends"))
    compare("batch", loop.batch, script.batch, ())
    weights = _number(counted, "parameters")
    compare("parameters", job.step.parameters, weights and weights + (_number(counted, "frozen") or 0), ())
    if not script.varies:
        compare("FLOPs", product_flops(job.step), _number(counted, "flops"), (), FLOPS_TOLERANCE)
    if script.refused:
        wrong, marked = [f"answered, but the script cannot be traced: {script.refused}"], False
    only_steps = len(wrong) == 1 and steps is None
    outcome = RIGHT if not wrong else UNKNOWN if only_steps else MARKED if marked else SILENT
    return {"outcome": outcome, "wrong": wrong, "counted": bool(counted), "steps": steps, "batch": loop.batch,
            "parameters": job.step.parameters, "flops": product_flops(job.step)}  # fmt: skip


def product_flops(step: OpGraph) -> float:
    """Return the operations of matrix products, convolutions and attention in a step, as ``FlopCounterMode`` counts."""
    return sum(_counted_flops(op) * op.count for op in step.ops if op.kind in PRODUCTS)


def _counted_flops(op: Op) -> float:
    """Return the operations of an op. The counter takes causal attention for whole, and a graph has half of it."""
    if op.kind is not OpKind.ATTENTION or "q" not in op.dims:
        return op.flops
    products = 5 if "backward" in op.name else 2
    whole = 2.0 * products * math.prod(op.dims[size] for size in ("b", "h", "q", "kv", "d"))
    return 2.0 * op.flops if op.flops < 0.75 * whole else op.flops


def _number(counted: Mapping[str, object], name: str) -> int | None:
    value = counted.get(name)
    return value if isinstance(value, int) else None


def _cpu_s() -> float:
    """Return the processor seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _rows(details: Sequence[Mapping[str, object]]) -> list[BenchmarkRow]:
    """Return the rows with targets, then a row for each category."""
    outcomes = Counter(str(detail["outcome"]) for detail in details)
    traceable = len(details) - outcomes[REFUSED]
    counted = sum(bool(detail.get("counted")) for detail in details)

    def names(outcome: str) -> str:
        return ", ".join(str(detail["name"]) for detail in details if detail["outcome"] == outcome)

    rows = [
        at_least("scripts with every fact right", 100 * outcomes[RIGHT] / max(1, traceable), RIGHT_SHARE, "%",
                 n=traceable,
                 how=f"steps and batch; in {counted} scripts also weights, and FLOPs within 3 % of a real run's"),
        *(at_most(outcome, outcomes[outcome], 0, "scripts", n=len(details), how=names(outcome))
          for outcome in (SILENT, FALSE)),
        *(BenchmarkRow(outcome, outcomes[outcome], "scripts", n=len(details), how=names(outcome))
          for outcome in (UNKNOWN, MARKED, REFUSED)),
    ]  # fmt: skip
    seconds = sorted(float(str(detail["cpu_s"])) for detail in details)
    slow = quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    rows.append(at_most("processor seconds of a trace, 95 % quantile", slow, CPU_SECONDS, "s", n=len(seconds)))
    ratios = [float(str(d["cpu_s"])) / float(str(d["bare_cpu_s"])) for d in details if d.get("bare_cpu_s")]
    if ratios:
        rows.append(at_most("trace ÷ bare fake run, median", median(ratios), BARE_RATIO, "times", n=len(ratios)))
    for category in sorted({str(detail["category"]) for detail in details}):
        members = [detail for detail in details if detail["category"] == category]
        good = sum(detail["outcome"] in (RIGHT, REFUSED) for detail in members)
        rows.append(BenchmarkRow(f"right or truly refused: {category}", good, "scripts", n=len(members)))
    return rows
