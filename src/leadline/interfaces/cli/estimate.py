"""``leadline estimate``: time, memory and cost of a job, without running it."""

import typer
from rich.table import Table
from rich.text import Text

from leadline.app.composition import toolbox
from leadline.app.estimate import EstimateAnswer
from leadline.app.estimate import estimate as estimate_verb
from leadline.core.documents import to_document
from leadline.core.estimate import Estimate, Interval
from leadline.core.units import format_bytes, format_count, format_duration
from leadline.interfaces.cli import workload_options as opt
from leadline.interfaces.cli.face import err, format_cost, out, print_json

app = typer.Typer(add_completion=False, rich_markup_mode=None)

ROWS_SHOWN = 30
"""How many places the table shows when none was named; --all shows the rest."""


@app.command()
def estimate(
    workload: opt.Subject = None,
    on: opt.On = None,
    batch: opt.Batch = None,
    seq: opt.Seq = None,
    input: opt.Input = None,  # noqa: A002 - named as its option
    precision: opt.PrecisionOption = None,
    optimizer: opt.OptimizerOption = None,
    epochs: opt.Epochs = None,
    steps: opt.Steps = None,
    samples: opt.Samples = None,
    bytes_per_sample: opt.BytesPerSample = None,
    workers: opt.Workers = None,
    gpus: opt.Gpus = None,
    phase: opt.PhaseOption = None,
    accumulate: opt.Accumulate = None,
    checkpointing: opt.Checkpointing = None,
    everything: opt.All = False,
    json: opt.Json = False,
) -> None:
    """Predict time, GPU memory, host memory and cost, on one place or on the whole catalog."""
    work = opt.workload_from(
        workload,
        batch=batch,
        seq=seq,
        input=input,
        precision=precision,
        optimizer=optimizer,
        epochs=epochs,
        steps=steps,
        samples=samples,
        bytes_per_sample=bytes_per_sample,
        workers=workers,
        gpus=gpus,
        phase=phase,
        accumulate=accumulate,
        checkpointing=checkpointing,
    )
    answer = estimate_verb(work, toolbox(), on=on or ())
    if json:
        print_json(_document(answer))
    else:
        _show(answer, named=bool(on), everything=everything)


def _document(answer: EstimateAnswer) -> dict[str, object]:
    """Return one estimate flat where one place was named, else the list of all."""
    if len(answer.estimates) == 1:
        return {
            **to_document(answer.estimates[0], "leadline.estimate/1"),
            **{name: value for name, value in to_document(answer, "").items() if name in ("workload", "graph")},
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
    if len(shown) < len(answer.estimates):
        console.print(f"{len(answer.estimates) - len(shown)} more places with --all.", style="dim")
    if shown:
        first = shown[0]
        console.print(f"Why, for {first.target.device} ({first.basis.tier.value} tier):", style="dim")
        for reason in (*first.basis.reasons, *first.unknown.values()):
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
    if not answer.workload.defaulted:
        return "every option was given"
    return "by default or from the model: " + ", ".join(answer.workload.defaulted)


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


def _table(estimates: list[Estimate]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    systems = any(one.target.system for one in estimates)
    if systems:
        table.add_column("place", no_wrap=True)
    table.add_column("device", overflow="ellipsis", no_wrap=True, max_width=24)
    for name in ("step", "elapsed", "90 % range", "GPU memory", "host"):
        table.add_column(name, justify="right", no_wrap=True)
    if systems:
        table.add_column("cost", justify="right", no_wrap=True)
        table.add_column("", overflow="ellipsis", no_wrap=True)
    for one in estimates:
        target = one.target
        cells: list[str | Text] = [
            target.device if target.gpus == 1 else f"{target.gpus} × {target.device}",
            _duration(one.step_s),
            _duration(one.elapsed_s),
            f"{format_duration(one.elapsed_s.low)} – {format_duration(one.elapsed_s.high)}" if one.elapsed_s else "",
            _gpu_memory(one),
            _size(one.host_memory_bytes),
        ]
        if systems:
            cells = [f"{target.system}:{target.partition}" if target.system else "", *cells, *format_cost(one)]
        table.add_row(*cells)
    return table


def _gpu_memory(estimate: Estimate) -> Text:
    """Show the memory, red and marked where the device has less."""
    needed, there = estimate.gpu_memory_bytes, estimate.device_memory_bytes
    text = _size(needed)
    return Text(f"{text} !", style="red") if needed and there and needed.point > there else Text(text)


def _duration(interval: Interval | None) -> str:
    return format_duration(interval.point) if interval else "not known"


def _size(interval: Interval | None) -> str:
    return format_bytes(interval.point) if interval else "not known"
