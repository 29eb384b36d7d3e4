"""``leadline recommend``: choose a configuration under a deadline, a budget and a risk."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.table import Table

from leadline.app.composition import toolbox, trained_model
from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.estimate.recommend import recommend as recommend_verb
from leadline.app.models.predict import recommend_with_model
from leadline.app.models.question import ModelQuestion
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput, NothingFits
from leadline.core.queues import IMMEDIATE_START_S
from leadline.core.recommendation import Constraints, Option, Recommendation, RiskWeights
from leadline.core.units import format_bytes, format_clock, format_duration, parse_duration_s
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
  leadline recommend job.toml --deadline 12h --budget 50
  leadline recommend --on Pitzer --on Expanse -- python train.py --batch-size 64 --epochs 10
  leadline recommend solver.npz --set grid=4096 --vary cores=4,8,16 --deadline 2h --on Pitzer"""

ROWS_SHOWN = 12
FEW = 3
"""Up to this many rejections are listed; more are counted by kind."""
LIMITS, REQUEST = "Limits", "The request"


@app.command(epilog=EXAMPLES)
@takes_workload
def recommend(
    work: Workload | ModelQuestion,
    *,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Maximum time to the end of the job: 12h, 90m, 1-00:00:00.",
            show_default="none",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(metavar="AMOUNT", help="Maximum cost of the job.", show_default="none", rich_help_panel=LIMITS),
    ] = None,
    currency: Annotated[
        str, typer.Option(metavar="UNIT", help="Unit of the budget: USD, or a site's unit.", rich_help_panel=LIMITS)
    ] = "USD",
    risk: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Accepted probability of exceeding a limit.", rich_help_panel=LIMITS),
    ] = DEFAULT_RISK,
    kill: Annotated[
        float,
        typer.Option(
            metavar="WEIGHT", help="Weight of an hour lost to a kill, in hours used.", rich_help_panel=REQUEST
        ),
    ] = 1.0,
    waste: Annotated[
        float,
        typer.Option(
            metavar="WEIGHT",
            help="Weight of an hour requested but not used: longer requests wait longer.",
            rich_help_panel=REQUEST,
        ),
    ] = 1.0,
    on: On = None,
    waits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYSTEM[=FILE]",
            help="Include queue wait time, predicted from job accounting: sacct output in FILE (- for "
            "stdin), or this cluster's sacct; repeatable.",
            show_default="waits unknown",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Recommend a system, a partition and a request for a workload or with a trained model, and explain the choice."""
    constraints = replace(_constraints(deadline, budget, currency, risk), weights=_weights(kill, waste))
    answer = _answer(work, constraints, on or (), waits or ())
    if json:
        print_json(to_document(answer, "leadline.recommendation/1"))
    elif answer.options:
        _show(answer, everything=everything)
    if not json:
        for note in answer.notes:
            err().print(f"note: {note}", markup=False, soft_wrap=True)
    if not answer.options:
        _show_rejections(answer, everything=everything)
        raise NothingFits(f"nothing fits; {answer.smallest_change or 'no single change would make it fit'}")


def _answer(
    question: Workload | ModelQuestion, constraints: Constraints, on: Sequence[str], waits: Sequence[str]
) -> Recommendation:
    if isinstance(question, ModelQuestion):
        return recommend_with_model(question, trained_model(question.model), toolbox(), constraints, on=on, waits=waits)
    return recommend_verb(question, toolbox(), constraints, on=on, waits=waits)


def _constraints(deadline: str | None, budget: float | None, currency: str, risk: float) -> Constraints:
    if not 0 < risk < 1:
        raise InvalidInput(f"--risk is {risk:g}, but it must be between 0 and 1, such as 0.05")
    if budget is not None and not budget >= 0:
        raise InvalidInput(f"--budget is {budget:g}, but it must be 0 or more")
    deadline_s = None if deadline is None else parse_duration_s(deadline)
    if deadline_s is not None and deadline_s <= 0:
        raise InvalidInput(f"--deadline is {deadline}, but it must be above 0")
    return Constraints(deadline_s, budget, currency if budget is not None else None, risk)


def _weights(kill: float, waste: float) -> RiskWeights:
    for option, value in (("--kill", kill), ("--waste", waste)):
        if not 0 <= value < float("inf"):
            raise InvalidInput(f"{option} is {value:g}, but it must be 0 or more")
    return RiskWeights(kill, waste)


def _show(answer: Recommendation, *, everything: bool) -> None:
    best = answer.options[0]
    console = out()
    console.print(f"Request {_request(best)}", style="bold")
    console.print(f"Why: {best.reason}.")
    if best.request_reason:
        console.print(f"{best.request_reason[0].upper()}{best.request_reason[1:]}.", soft_wrap=True)
    for note in best.notes:
        console.print(f"Note: {note}.", soft_wrap=True)
    if best.command:
        console.print(f"Run: {shlex.join(best.command)}", soft_wrap=True, markup=False)
    console.print()
    shown = answer.options if everything else answer.options[:ROWS_SHOWN]
    console.print(_table(shown))
    if len(shown) < len(answer.options):
        console.print(f"{len(answer.options) - len(shown)} more with --all.", style="dim")
    if best.parameters:
        for reason in best.estimate.basis.reasons:
            console.print(f"  · {reason}", style="dim", markup=False, soft_wrap=True)
    _show_rejections(answer, everything=everything)


def _wait(wait_s: float) -> str:
    """Return a wait; up to a minute is "none", the cycle of a scheduler."""
    return "none" if wait_s <= IMMEDIATE_START_S else format_duration(wait_s)


def _request(option: Option) -> str:
    request, target = option.resources, option.estimate.target
    parts = [format_place(option.system, option.partition), f"{request.nodes} node{'s' * (request.nodes > 1)}"]
    if request.gpus_per_node:
        parts.append(f"{request.gpus_per_node} × {target.device} per node")
    if request.cores_per_task:
        parts.append(f"{request.cores_per_task} cores")
    if request.memory_bytes_per_node:
        parts.append(f"{format_bytes(request.memory_bytes_per_node)} of memory")
    if request.walltime_s:
        parts.append(f"{format_clock(request.walltime_s)} of walltime")
    return ", ".join(parts)


def _table(options: tuple[Option, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("place", no_wrap=True)
    varying = varying_names([option.parameters for option in options])
    for name in varying:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("device", overflow="ellipsis", no_wrap=True, max_width=24)
    for name in ("time", "90 % range", "request", "memory", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="ellipsis", no_wrap=True)
    if waits := any(option.wait_s for option in options):
        for name in ("wait", "90 % of waits", "result after"):
            table.add_column(name, justify="right", no_wrap=True)
    if unsure := any(option.notes for option in options):
        table.add_column("")
    for option in options:
        estimate, request = option.estimate, option.resources
        table.add_row(
            "*" if option.on_front else "",
            format_place(option.system, option.partition),
            *(format_value(option.parameters.get(name)) for name in varying),
            estimate.target.device
            if estimate.target.gpus <= 1
            else f"{estimate.target.gpus} × {estimate.target.device}",
            format_duration(estimate.elapsed_s.point) if estimate.elapsed_s else "unknown",
            f"{format_duration(estimate.elapsed_s.low)} – {format_duration(estimate.elapsed_s.high)}"
            if estimate.elapsed_s
            else "",
            format_clock(request.walltime_s) if request.walltime_s else "",
            format_bytes(request.memory_bytes_per_node) if request.memory_bytes_per_node else "",
            *format_cost(estimate),
            *(_waits(option) if waits else ()),
            *(["?" if option.notes else ""] if unsure else []),
        )
    table.caption = "* no other option is both faster and cheaper in the same currency"
    if unsure:
        table.caption += "\n? no run had this hardware: wider interval"
    table.caption_justify = "left"
    return table


def _waits(option: Option) -> tuple[str, str, str]:
    """Return the wait, its interval, and the time until the result."""
    wait, result = option.wait_s, option.result_s
    if wait is None or result is None:
        return "unknown", "", ""
    return (_wait(wait.point), f"{_wait(wait.low)} – {_wait(wait.high)}",
            format_duration(result.point))  # fmt: skip


def _show_rejections(answer: Recommendation, *, everything: bool) -> None:
    if not answer.rejections:
        return
    console = err()
    if everything or len(answer.rejections) <= FEW:
        for rejection in answer.rejections:
            place = format_place(rejection.system, rejection.partition)
            console.print(f"rejected {place} ({rejection.node}): {rejection.reason}", soft_wrap=True)
        return
    causes = Counter(rejection.kind for rejection in answer.rejections)
    summary = "; ".join(f"{count} {cause}" for cause, count in causes.most_common(6))
    console.print(f"{len(answer.rejections)} partitions rejected ({summary}); show them with --all")
