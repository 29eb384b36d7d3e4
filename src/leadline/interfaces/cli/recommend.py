"""``leadline recommend``: choose a configuration under a deadline, a budget and a risk."""

import shlex
from collections import Counter
from functools import partial

import click

from leadline.app.composition import toolbox, trained_model
from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.estimate.recommend import build_constraints
from leadline.app.estimate.recommend import recommend as recommend_verb
from leadline.app.models.question import ModelQuestion
from leadline.core.documents import to_document
from leadline.core.errors import NothingFits
from leadline.core.queues import IMMEDIATE_START_S
from leadline.core.recommendation import Option, Recommendation, RiskWeights
from leadline.core.units import format_bytes, format_clock, format_duration, pluralize
from leadline.core.workload import Workload
from leadline.interfaces import tables
from leadline.interfaces.cli.command import all_option, command, json_option, option
from leadline.interfaces.cli.output import (
    format_cost,
    format_value,
    print_basis,
    print_json,
    print_note,
    print_notes,
    print_table,
    status,
)
from leadline.interfaces.cli.workload_options import on_option, takes_workload

ROWS_SHOWN = 12
FEW = 3
"""Up to this many rejections are listed; more are counted by kind."""
limit, request_weight = partial(option, section="Limits"), partial(option, section="The request")


@command("recommend")
@limit("--deadline", "TIME", "Maximum time to the end of the job: 12h, 90m, 1-00:00:00.", "none")
@limit("--budget", "AMOUNT", "Maximum cost of the job.", "none", type=float)
@limit("--currency", "UNIT", "Unit of the budget: USD, or a site's unit.", default="USD")
@limit("--risk", "SHARE", "Accepted probability of exceeding a limit.", type=float, default=DEFAULT_RISK)
@request_weight("--kill", "WEIGHT", "Weight of an hour lost to a kill, in hours used.", type=float, default=1.0)
@request_weight(
    "--waste", "WEIGHT", "Weight of an hour requested but not used: longer requests wait longer.", type=float,
    default=1.0,
)  # fmt: skip
@on_option
@limit(
    "--waits", "SYSTEM[=FILE]",
    "Include queue wait time, predicted from job accounting: sacct output in FILE (- for "
    "stdin), or this cluster's sacct; repeatable.", "waits unknown", multiple=True,
)  # fmt: skip
@all_option
@json_option
@takes_workload
def recommend(
    work: Workload | ModelQuestion, *, deadline: str | None, budget: float | None, currency: str, risk: float,
    kill: float, waste: float, on: tuple[str, ...], waits: tuple[str, ...], everything: bool, json: bool,
) -> None:  # fmt: skip
    """Recommend a system, a partition and a request for a workload or with a trained model, and explain the choice."""
    constraints = build_constraints(deadline, budget, currency, risk, RiskWeights(kill, waste))
    with status("predicting", quiet=json):
        if isinstance(work, ModelQuestion):
            from leadline.app.models.predict import recommend_with_model  # noqa: PLC0415 - the other path is the usual one

            model = trained_model(work.model)
            answer = recommend_with_model(work, model, toolbox(), constraints, on=on, waits=waits)
        else:
            answer = recommend_verb(work, toolbox(), constraints, on=on, waits=waits)
    if json:
        print_json(to_document(answer, "leadline.recommendation/1"))
    elif answer.options:
        _show(answer, everything=everything)
    if not json:
        print_notes(answer.notes)
    if not answer.options:
        _show_rejections(answer, everything=everything)
        raise NothingFits(f"nothing fits; {answer.smallest_change or 'no single change would make it fit'}")


def _show(answer: Recommendation, *, everything: bool) -> None:
    best = answer.options[0]
    click.secho(f"Request {_request(best)}", bold=True)
    click.echo(f"Why: {best.reason}.")
    if best.request_reason:
        click.echo(f"{best.request_reason[0].upper()}{best.request_reason[1:]}.")
    for note in best.notes:
        click.echo(f"Note: {note}.")
    if best.command:
        click.echo(f"Run: {shlex.join(best.command)}")
    click.echo()
    shown = answer.options if everything else answer.options[:ROWS_SHOWN]
    _print_table(shown)
    if len(shown) < len(answer.options):
        click.secho(f"{len(answer.options) - len(shown)} more with --all.", dim=True)
    print_basis([option.estimate for option in shown], brief=True)
    _show_rejections(answer, everything=everything)


def _wait(wait_s: float) -> str:
    """Return a wait; up to a minute is "none", the cycle of a scheduler."""
    return "none" if wait_s <= IMMEDIATE_START_S else format_duration(wait_s)


def _request(option: Option) -> str:
    request, target = option.resources, option.estimate.target
    parts = [tables.format_place(option.system, option.partition), pluralize(request.nodes, "node")]
    if request.gpus_per_node:
        parts.append(f"{request.gpus_per_node} × {target.device} per node")
    if request.cores_per_task:
        parts.append(f"{request.cores_per_task} cores")
    if request.memory_bytes_per_node:
        parts.append(f"{format_bytes(request.memory_bytes_per_node)} of memory")
    if request.walltime_s:
        parts.append(f"{format_clock(request.walltime_s)} of walltime")
    return ", ".join(parts)


def _print_table(options: tuple[Option, ...]) -> None:
    varying = tables.varying_names([option.parameters for option in options])
    waits, unsure = any(option.wait_s for option in options), any(option.notes for option in options)
    titles = ["", "place", *varying, "device", "time", "90 % range", "request", "memory", "cost"]
    titles += [*["wait", "90 % of waits", "result after"] * waits, ""]
    rows = []
    for candidate in options:
        estimate = candidate.estimate
        rows.append((
            "*" if candidate.on_front else "", tables.format_place(candidate.system, candidate.partition),
            *(format_value(candidate.parameters.get(name)) for name in varying),
            tables.format_device(estimate.target.device, estimate.target.gpus), tables.format_time(estimate.elapsed_s),
            tables.format_range(estimate.elapsed_s), *tables.format_limits(candidate.resources), format_cost(estimate),
            *(_waits(candidate) if waits else ()), "?" if candidate.notes else "",
        ))  # fmt: skip
    print_table(titles, rows, words=("", "place", "device"))
    click.echo("* no other option is both faster and cheaper in the same currency")
    if unsure:
        click.echo("? no run had this hardware: wider interval")


def _waits(option: Option) -> tuple[str, str, str]:
    """Return the wait, its interval, and the time until the result."""
    wait, result = option.wait_s, option.result_s
    if wait is None or result is None:
        return "unknown", "", ""
    return _wait(wait.point), f"{_wait(wait.low)} – {_wait(wait.high)}", format_duration(result.point)


def _show_rejections(answer: Recommendation, *, everything: bool) -> None:
    if not answer.rejections:
        return
    if everything or len(answer.rejections) <= FEW:
        for rejection in answer.rejections:
            place = tables.format_place(rejection.system, rejection.partition)
            print_note(f"rejected {place} ({rejection.node}): {rejection.reason}")
        return
    causes = Counter(rejection.kind for rejection in answer.rejections)
    summary = "; ".join(f"{count} {cause}" for cause, count in causes.most_common(6))
    print_note(f"{len(answer.rejections)} partitions rejected ({summary}); show them with --all")
