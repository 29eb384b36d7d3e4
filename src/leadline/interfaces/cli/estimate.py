"""``leadline estimate``: time, memory and cost of a job, without running it."""

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
from leadline.core.documents import to_document
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

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline estimate config.json --batch 4 --seq 2048 --on "A100 SXM4 80GB"
  leadline estimate --on Perlmutter -- python train.py --batch-size 64 --epochs 10
  leadline estimate train.py:build --input 64x3x224x224 --samples 1281167 --epochs 90
  leadline estimate solver.npz --set grid=4096 --set cores=8"""

ROWS_SHOWN = 30
"""How many places the table shows when none was named; --all shows the rest."""


@app.command(epilog=EXAMPLES)
@takes_workload
def estimate(
    work: Workload | ModelQuestion,
    *,
    on: On = None,
    estimator: Annotated[
        EstimatorChoice | None,
        typer.Option(
            help="What prices a step, in place of what was least off on measured steps of its kind.",
            show_default="the least off",
        ),
    ] = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Predict time, memory and cost of a workload, or of what a trained model is asked, in one place or in all."""
    if isinstance(work, ModelQuestion):
        if estimator is not None:
            raise InvalidInput(
                f"--estimator {estimator.value} prices steps, and {work.model} was trained on runs: leave it out"
            )
        _show_model(estimate_with_model(work, trained_model(work.model), toolbox(), on=on or ()), json=json)
        return
    answer = estimate_verb(work, toolbox(estimator), on=on or ())
    if json:
        print_json(_document(answer))
    else:
        _show(answer, named=bool(on), everything=everything)


def _show_model(answer: ModelAnswer, *, json: bool) -> None:
    """Show what a trained model says: one configuration as one flat document, several as a list."""
    if json:
        asked = {"application": answer.application, "notes": answer.notes, "left_out": answer.left_out}
        each = [
            {**to_document(one, "leadline.estimate/1"), **asked, "parameters": parameters}
            for one, parameters in zip(answer.estimates, answer.parameters, strict=True)
        ]
        print_json(each[0] if len(each) == 1 else {"schema": "leadline.estimates/1", **asked, "estimates": each})
        return
    console, first = out(), answer.estimates[0]
    varied = varying_names(answer.parameters)
    fixed = {name: value for name, value in answer.parameters[0].items() if name not in varied}
    said = ", ".join(f"{name} {format_value(value)}" for name, value in fixed.items())
    console.print(f"{answer.application}: {said}" if said else answer.application, style="bold", markup=False)
    console.print(_table(list(answer.estimates), [[(n, p[n]) for n in varied] for p in answer.parameters]))
    console.print("Why (learned tier):", style="dim")
    for reason in dict.fromkeys((*first.basis.reasons, *(note for one in answer.estimates for note in one.notes))):
        console.print(f"  · {reason}", style="dim", markup=False, soft_wrap=True)
    for reason in dict.fromkeys(why for one in answer.estimates for why in one.unknown.values()):
        console.print(f"  · {reason}", style="dim", markup=False, soft_wrap=True)
    for note in (*answer.notes, *(f"left out: {one}" for one in answer.left_out)):
        err().print(f"note: {note}", markup=False, soft_wrap=True)


def _document(answer: EstimateAnswer) -> dict[str, object]:
    """Return one estimate flat where one place was named, else the list of all."""
    if len(answer.estimates) == 1:
        return {
            **to_document(answer.estimates[0], "leadline.estimate/1"),
            **{
                name: value
                for name, value in to_document(answer, "").items()
                if name in ("workload", "graph", "assumed")
            },
            "trace_notes": list(answer.notes),
        }
    return to_document(answer, "leadline.estimates/1")


def _show(answer: EstimateAnswer, *, named: bool, everything: bool) -> None:
    console = out()
    console.print(_headline(answer), style="bold")
    console.print(_assumed(answer), style="dim")
    rows = list(answer.estimates) if named or everything else _one_per_system(answer.estimates)
    shown = rows if named or everything else rows[:ROWS_SHOWN]
    console.print(_table(shown))
    if any(one.token_times for one in shown):
        console.print(_token_table(shown))
    if len(shown) < len(answer.estimates):
        console.print(f"{len(answer.estimates) - len(shown)} more places with --all.", style="dim")
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
    """Say what holds where the user named nothing."""
    if not answer.assumed:
        return "every option was given"
    return "by default or from the model: " + ", ".join(f"{name} {value}" for name, value in answer.assumed.items())


def _one_per_system(estimates: tuple[Estimate, ...]) -> list[Estimate]:
    """Keep the fastest place of each (system, device)."""
    best: dict[tuple[str | None, str], Estimate] = {}
    for one in estimates:
        key = (one.target.system, one.target.device)
        if key not in best or _speed(one) < _speed(best[key]):
            best[key] = one
    return sorted(best.values(), key=_speed)


def _speed(estimate: Estimate) -> float:
    interval = estimate.elapsed_s or estimate.step_s
    return interval.point if interval else float("inf")


def _table(estimates: list[Estimate], parameters: Sequence[Sequence[tuple[str, Value]]] = ()) -> Table:
    """Return a row for each estimate; ``parameters`` are the cells of each that stand before the figures."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    systems = any(one.target.system for one in estimates)
    if systems:
        table.add_column("place", no_wrap=True)
    table.add_column("device", overflow="ellipsis", no_wrap=True, max_width=24)
    for name, _ in parameters[0] if parameters else ():
        table.add_column(name, justify="right", no_wrap=True)
    steps = any(one.step_s for one in estimates)
    gpus = not parameters or any(one.gpu_memory_bytes for one in estimates)
    for name in (*["step"] * steps, "elapsed", "90 % range", *["GPU memory"] * gpus, "host"):
        table.add_column(name, justify="right", no_wrap=True)
    if systems:
        table.add_column("cost", justify="right", no_wrap=True)
        table.add_column("", overflow="ellipsis", no_wrap=True)
    for at, one in enumerate(estimates):
        target = one.target
        cells: list[str | Text] = [
            target.device if target.gpus <= 1 else f"{target.gpus} × {target.device}",
            *(format_value(value) for _, value in (parameters[at] if parameters else ())),
            *[_duration(one.step_s)] * steps,
            _duration(one.elapsed_s),
            _range(one.elapsed_s),
            *[_gpu_memory(one)] * gpus,
            _size(one.host_memory_bytes),
        ]
        if systems:
            cells = [format_place(target.system, target.partition), *cells, *format_cost(one)]
        table.add_row(*cells)
    return table


def _token_table(estimates: list[Estimate]) -> Table:
    """Return what a language model's answers take: a row for each device and number of them, wherever it stands."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device", overflow="ellipsis", no_wrap=True, max_width=24)
    for name in ("first token", "90 % range", "per token", "90 % range", "at the ends", "tokens/s", "KV cache"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = []
    for one in estimates:
        told, key = one.token_times, (one.target.device, one.target.gpus, one.token_times)
        if told is None or key in shown:
            continue
        shown.append(key)
        ends = (told.first_decode_step_s, told.last_decode_step_s)
        table.add_row(
            one.target.device if one.target.gpus <= 1 else f"{one.target.gpus} × {one.target.device}",
            _duration(told.time_to_first_token_s),
            _range(told.time_to_first_token_s),
            _duration(told.time_per_output_token_s) if told.time_per_output_token_s else "no further",
            _range(told.time_per_output_token_s),
            " – ".join(_duration(end) for end in ends if end),
            f"{told.output_tokens_per_s.point:.3g}",
            format_bytes(told.kv_cache_bytes),
        )
    return table


def _range(interval: Interval | None) -> str:
    return f"{format_duration(interval.low)} – {format_duration(interval.high)}" if interval else ""


def _gpu_memory(estimate: Estimate) -> Text:
    """Show the memory, red and marked where the device has less."""
    needed, there = estimate.gpu_memory_bytes, estimate.device_memory_bytes
    text = _size(needed)
    return Text(f"{text} !", style="red") if needed and there and needed.point > there else Text(text)


def _duration(interval: Interval | None) -> str:
    return format_duration(interval.point) if interval else "not known"


def _size(interval: Interval | None) -> str:
    return format_bytes(interval.point) if interval else "not known"
