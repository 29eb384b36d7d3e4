"""``leadline estimate``: predict time, memory and cost of a job without running it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from leadline.app.composition import toolbox, trained_model
from leadline.app.estimate.estimate import EstimateAnswer
from leadline.app.estimate.estimate import estimate as estimate_verb
from leadline.app.models.question import ModelQuestion
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Estimate, EstimatorChoice
from leadline.core.runs import Value
from leadline.core.units import format_bytes, format_count
from leadline.core.workload import Workload
from leadline.interfaces import tables
from leadline.interfaces.cli.command import all_option, command, json_option, option
from leadline.interfaces.cli.output import (
    format_cost,
    format_value,
    print_basis,
    print_json,
    print_notes,
    print_reasons,
    print_table,
    status,
)
from leadline.interfaces.cli.workload_options import on_option, takes_workload
from leadline.interfaces.documents import estimate_document, model_estimate_document

if TYPE_CHECKING:
    from leadline.app.models.predict import ModelAnswer


ROWS_SHOWN = 30
"""Maximum number of partitions shown without ``--on`` or ``--all``."""


@command("estimate")
@on_option
@option(
    "--estimator", "ESTIMATOR", "Estimator for step time.", "the most accurate one for this kind of job",
    type=click.Choice([choice.value for choice in EstimatorChoice]),
)  # fmt: skip
@all_option
@json_option
@takes_workload
def estimate(
    work: Workload | ModelQuestion, *, on: tuple[str, ...], estimator: str | None, everything: bool, json: bool,
) -> None:  # fmt: skip
    """Predict time, memory and cost of a workload, or with a trained model, for one target or the whole catalog."""
    if isinstance(work, ModelQuestion):
        if estimator is not None:
            raise InvalidInput(f"--estimator is for workloads, and {work.model} is a trained model: leave it out")
        from leadline.app.models.predict import estimate_with_model  # noqa: PLC0415 - the workload's path is the usual one

        with status("predicting", quiet=json):
            answered = estimate_with_model(work, trained_model(work.model), toolbox(), on=on)
        _show_model(answered, json=json)
        return
    with status(f"estimating {work.name}", quiet=json):
        answer = estimate_verb(work, toolbox(EstimatorChoice(estimator) if estimator else None), on=on)
    if json:
        print_json(estimate_document(answer))
    else:
        _show(answer, named=bool(on), everything=everything)


def _show_model(answer: "ModelAnswer", *, json: bool) -> None:
    """Show the predictions of a trained model: one configuration as a flat document, several as a list."""
    if json:
        print_json(model_estimate_document(answer))
        return
    first = answer.estimates[0]
    varied = tables.varying_names(answer.parameters)
    fixed = {name: value for name, value in answer.parameters[0].items() if name not in varied}
    fixed_text = ", ".join(f"{name} {format_value(value)}" for name, value in fixed.items())
    click.secho(f"{answer.application}: {fixed_text}" if fixed_text else answer.application, bold=True)
    _print_table(list(answer.estimates), [[(n, p[n]) for n in varied] for p in answer.parameters])
    click.secho("Why (learned tier):", dim=True)
    print_reasons((*first.basis.reasons, *(note for estimate in answer.estimates for note in estimate.notes)))
    print_reasons(why for estimate in answer.estimates for why in estimate.unknown.values())
    print_notes((*answer.notes, *(f"left out: {sentence}" for sentence in answer.left_out)))


def _show(answer: EstimateAnswer, *, named: bool, everything: bool) -> None:
    graph, workload = answer.graph, answer.workload
    headline = (
        f"{workload.name}: {workload.phase.value}, {format_count(graph.parameters)} parameters, "
        f"{format_count(graph.flops_per_step)}FLOP in {graph.ops} ops a step ({graph.source})"
    )
    click.secho(headline, bold=True)
    assumed = ", ".join(f"{name} {value}" for name, value in answer.assumed.items())
    click.secho(f"by default or from the model: {assumed}" if assumed else "every option is set", dim=True)
    rows = list(answer.estimates) if named or everything else _one_per_system(answer.estimates)
    shown = rows if named or everything else rows[:ROWS_SHOWN]
    _print_table(shown)
    if any(estimate.token_times for estimate in shown):
        _print_token_times(shown)
    if len(shown) < len(answer.estimates):
        click.secho(f"{len(answer.estimates) - len(shown)} more partitions with --all", dim=True)
    print_basis(shown, brief=not named)
    print_notes(answer.notes)
    if answer.left_out and everything:
        print_notes(answer.left_out, "left out")


def _one_per_system(estimates: tuple[Estimate, ...]) -> list[Estimate]:
    """Keep the fastest partition of each (system, device)."""
    best: dict[tuple[str | None, str], Estimate] = {}
    for estimate in estimates:
        key = (estimate.target.system, estimate.target.device)
        best[key] = min(best.get(key, estimate), estimate, key=tables.expected_s)
    return sorted(best.values(), key=tables.expected_s)


def _print_table(estimates: list[Estimate], parameters: Sequence[Sequence[tuple[str, Value]]] = ()) -> None:
    """Print a row per estimate; ``parameters`` are extra cells before the numbers."""
    systems = any(estimate.target.system for estimate in estimates)
    steps = any(estimate.step_s for estimate in estimates)
    gpus = not parameters or any(estimate.gpu_memory_bytes for estimate in estimates)
    varied = [name for name, _ in parameters[0]] if parameters else []
    titles = [*["place"] * systems, "device", *varied, *["step"] * steps, "elapsed", "90 % range"]
    titles += [*["GPU memory"] * gpus, "host", *["cost"] * systems]
    rows = []
    for index, estimate in enumerate(estimates):
        target = estimate.target
        rows.append([
            *[tables.format_place(target.system, target.partition)] * systems,
            tables.format_device(target.device, target.gpus),
            *(format_value(value) for _, value in (parameters[index] if parameters else ())),
            *[tables.format_time(estimate.step_s)] * steps, tables.format_time(estimate.elapsed_s),
            tables.format_range(estimate.elapsed_s), *[_gpu_memory(estimate)] * gpus,
            tables.format_size(estimate.host_memory_bytes), *[format_cost(estimate)] * systems,
        ])  # fmt: skip
    print_table(titles, rows, words=("place", "device"))


def _print_token_times(estimates: list[Estimate]) -> None:
    """Print times per token: a row per distinct device and number of GPUs."""
    titles = ("device", "first token", "90 % range", "per token", "90 % range", "first – last", "tokens/s", "KV cache")
    shown, rows = [], []
    for estimate in estimates:
        times, key = estimate.token_times, (estimate.target.device, estimate.target.gpus, estimate.token_times)
        if times is None or key in shown:
            continue
        shown.append(key)
        ends = (times.first_decode_step_s, times.last_decode_step_s)
        rows.append((
            tables.format_device(estimate.target.device, estimate.target.gpus),
            tables.format_time(times.time_to_first_token_s), tables.format_range(times.time_to_first_token_s),
            tables.format_time(times.time_per_output_token_s) if times.time_per_output_token_s else "none",
            tables.format_range(times.time_per_output_token_s),
            " – ".join(tables.format_time(end) for end in ends if end),
            f"{times.output_tokens_per_s.point:.3g}", format_bytes(times.kv_cache_bytes),
        ))  # fmt: skip
    print_table(titles, rows, words=("device",))


def _gpu_memory(estimate: Estimate) -> str:
    """Return the memory, in red and marked if the device has less."""
    needed, capacity = estimate.gpu_memory_bytes, estimate.device_memory_bytes
    text = tables.format_size(needed)
    return click.style(f"{text} !", fg="red") if needed and capacity and needed.point > capacity else text
