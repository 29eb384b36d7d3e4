"""``leadline estimate``: predict time, memory and cost of a job without running it."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from leadline.app.composition import toolbox, trained_model
from leadline.app.estimate.estimate import EstimateAnswer
from leadline.app.estimate.estimate import estimate as estimate_verb
from leadline.app.models.predict import ModelAnswer, estimate_with_model
from leadline.app.models.question import ModelQuestion
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Estimate, EstimatorChoice, Interval
from leadline.core.runs import Value
from leadline.core.units import format_bytes, format_count, format_duration
from leadline.core.workload import Workload
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import (
    All,
    Json,
    err,
    format_cost,
    format_place,
    format_value,
    out,
    print_json,
    varying_names,
)
from leadline.interfaces.cli.workload_options import On, takes_workload
from leadline.interfaces.documents import estimate_document, model_estimate_document

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline estimate config.json --batch 4 --seq 2048 --on "A100 SXM4 80GB"
  leadline estimate --on Perlmutter -- python train.py --batch-size 64 --epochs 10
  leadline estimate train.py:build --input 64x3x224x224 --samples 1281167 --epochs 90
  leadline estimate solver.npz --set grid=4096 --set cores=8"""

ROWS_SHOWN = 30
"""Maximum number of partitions shown without ``--on`` or ``--all``."""


@app.command(epilog=EXAMPLES)
@takes_workload
def estimate(
    work: Workload | ModelQuestion,
    *,
    on: On = None,
    estimator: Annotated[
        EstimatorChoice | None,
        typer.Option(
            help="Estimator for step time.",
            show_default="the most accurate one for this kind of job",
        ),
    ] = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Predict time, memory and cost of a workload, or with a trained model, for one target or the whole catalog."""
    if isinstance(work, ModelQuestion):
        if estimator is not None:
            raise InvalidInput(f"--estimator is for workloads, and {work.model} is a trained model: leave it out")
        _show_model(estimate_with_model(work, trained_model(work.model), toolbox(), on=on or ()), json=json)
        return
    answer = estimate_verb(work, toolbox(estimator), on=on or ())
    if json:
        print_json(estimate_document(answer))
    else:
        _show(answer, named=bool(on), everything=everything)


def _show_model(answer: ModelAnswer, *, json: bool) -> None:
    """Show the predictions of a trained model: one configuration as a flat document, several as a list."""
    if json:
        print_json(model_estimate_document(answer))
        return
    console, first = out(), answer.estimates[0]
    varied = varying_names(answer.parameters)
    fixed = {name: value for name, value in answer.parameters[0].items() if name not in varied}
    fixed_text = ", ".join(f"{name} {format_value(value)}" for name, value in fixed.items())
    console.print(
        f"{answer.application}: {fixed_text}" if fixed_text else answer.application, style="bold", markup=False
    )
    console.print(_table(list(answer.estimates), [[(n, p[n]) for n in varied] for p in answer.parameters]))
    console.print("Why (learned tier):", style="dim")
    for reason in dict.fromkeys(
        (*first.basis.reasons, *(note for estimate in answer.estimates for note in estimate.notes))
    ):
        console.print(f"  · {reason}", style="dim", markup=False, soft_wrap=True)
    for reason in dict.fromkeys(why for estimate in answer.estimates for why in estimate.unknown.values()):
        console.print(f"  · {reason}", style="dim", markup=False, soft_wrap=True)
    for note in (*answer.notes, *(f"left out: {sentence}" for sentence in answer.left_out)):
        err().print(f"note: {note}", markup=False, soft_wrap=True)


def _show(answer: EstimateAnswer, *, named: bool, everything: bool) -> None:
    console = out()
    console.print(_headline(answer), style="bold")
    console.print(_assumed(answer), style="dim")
    rows = list(answer.estimates) if named or everything else _one_per_system(answer.estimates)
    shown = rows if named or everything else rows[:ROWS_SHOWN]
    console.print(_table(shown))
    if any(estimate.token_times for estimate in shown):
        console.print(_token_table(shown))
    if len(shown) < len(answer.estimates):
        console.print(f"{len(answer.estimates) - len(shown)} more partitions with --all", style="dim")
    if shown:
        first = shown[0]
        console.print(f"Why, for {first.target.device} ({first.basis.tier.value} tier):", style="dim")
        for reason in dict.fromkeys((*first.basis.reasons, *first.unknown.values())):
            console.print(f"  · {reason}", style="dim")
    for note in answer.notes:
        err().print(f"note: {note}")
    if answer.left_out and everything:
        for sentence in answer.left_out:
            err().print(f"left out: {sentence}")


def _headline(answer: EstimateAnswer) -> str:
    graph = answer.graph
    return (
        f"{answer.workload.name}: {answer.workload.phase.value}, {format_count(graph.parameters)} parameters, "
        f"{format_count(graph.flops_per_step)}FLOP in {graph.ops} ops a step ({graph.source})"
    )


def _assumed(answer: EstimateAnswer) -> str:
    """Return the values of options that were not given."""
    if not answer.assumed:
        return "every option is set"
    return "by default or from the model: " + ", ".join(f"{name} {value}" for name, value in answer.assumed.items())


def _one_per_system(estimates: tuple[Estimate, ...]) -> list[Estimate]:
    """Keep the fastest partition of each (system, device)."""
    best: dict[tuple[str | None, str], Estimate] = {}
    for estimate in estimates:
        key = (estimate.target.system, estimate.target.device)
        if key not in best or _speed(estimate) < _speed(best[key]):
            best[key] = estimate
    return sorted(best.values(), key=_speed)


def _speed(estimate: Estimate) -> float:
    interval = estimate.elapsed_s or estimate.step_s
    return interval.point if interval else float("inf")


def _table(estimates: list[Estimate], parameters: Sequence[Sequence[tuple[str, Value]]] = ()) -> Table:
    """Return a row per estimate; ``parameters`` are extra cells before the numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    systems = any(estimate.target.system for estimate in estimates)
    if systems:
        table.add_column("place", no_wrap=True)
    table.add_column("device", overflow="ellipsis", no_wrap=True, max_width=24)
    for name, _ in parameters[0] if parameters else ():
        table.add_column(name, justify="right", no_wrap=True)
    steps = any(estimate.step_s for estimate in estimates)
    gpus = not parameters or any(estimate.gpu_memory_bytes for estimate in estimates)
    for name in (*["step"] * steps, "elapsed", "90 % range", *["GPU memory"] * gpus, "host"):
        table.add_column(name, justify="right", no_wrap=True)
    if systems:
        table.add_column("cost", justify="right", no_wrap=True)
        table.add_column("", overflow="ellipsis", no_wrap=True)
    for index, estimate in enumerate(estimates):
        target = estimate.target
        cells: list[str | Text] = [
            target.device if target.gpus <= 1 else f"{target.gpus} × {target.device}",
            *(format_value(value) for _, value in (parameters[index] if parameters else ())),
            *[_duration(estimate.step_s)] * steps,
            _duration(estimate.elapsed_s),
            _range(estimate.elapsed_s),
            *[_gpu_memory(estimate)] * gpus,
            _size(estimate.host_memory_bytes),
        ]
        if systems:
            cells = [format_place(target.system, target.partition), *cells, *format_cost(estimate)]
        table.add_row(*cells)
    return table


def _token_table(estimates: list[Estimate]) -> Table:
    """Return times per token: a row per distinct device and number of GPUs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device", overflow="ellipsis", no_wrap=True, max_width=24)
    for name in ("first token", "90 % range", "per token", "90 % range", "first – last", "tokens/s", "KV cache"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = []
    for estimate in estimates:
        times, key = estimate.token_times, (estimate.target.device, estimate.target.gpus, estimate.token_times)
        if times is None or key in shown:
            continue
        shown.append(key)
        ends = (times.first_decode_step_s, times.last_decode_step_s)
        table.add_row(
            estimate.target.device
            if estimate.target.gpus <= 1
            else f"{estimate.target.gpus} × {estimate.target.device}",
            _duration(times.time_to_first_token_s),
            _range(times.time_to_first_token_s),
            _duration(times.time_per_output_token_s) if times.time_per_output_token_s else "none",
            _range(times.time_per_output_token_s),
            " – ".join(_duration(end) for end in ends if end),
            f"{times.output_tokens_per_s.point:.3g}",
            format_bytes(times.kv_cache_bytes),
        )
    return table


def _range(interval: Interval | None) -> str:
    return f"{format_duration(interval.low)} – {format_duration(interval.high)}" if interval else ""


def _gpu_memory(estimate: Estimate) -> Text:
    """Return the memory, in red and marked if the device has less."""
    needed, capacity = estimate.gpu_memory_bytes, estimate.device_memory_bytes
    text = _size(needed)
    return Text(f"{text} !", style="red") if needed and capacity and needed.point > capacity else Text(text)


def _duration(interval: Interval | None) -> str:
    return format_duration(interval.point) if interval else "unknown"


def _size(interval: Interval | None) -> str:
    return format_bytes(interval.point) if interval else "unknown"
