"""``leadline pipeline``: plan and run stages that events start, and show or stop them."""

from collections.abc import Callable
from pathlib import Path

import click

from leadline.app.pipelines.find import find_pipeline
from leadline.app.pipelines.plan import PipelinePlan, PlannedStage, plan_pipeline
from leadline.app.pipelines.report import PipelineEntry, PipelineList, list_pipelines
from leadline.app.pipelines.runs import PipelineStatus, StageStatus, pipeline_status, run_pipeline, stop_pipeline
from leadline.core.documents import to_document
from leadline.core.units import format_bytes, format_duration, parse_duration_s, pluralize
from leadline.files.read import is_file
from leadline.interfaces.cli.command import FILE, INTERRUPTED, argument, flag, group, json_option, option
from leadline.interfaces.cli.output import print_answer, print_json, print_note, print_table, status
from leadline.interfaces.cli.pipeline_simulate import simulate
from leadline.interfaces.documents import PIPELINE, PIPELINE_PLAN, PIPELINES
from leadline.interfaces.tables import format_currency, format_energy, format_range, format_time
from leadline.pipelines.runner import PipelineEnding

file_argument: Callable[..., Callable[..., object]] = argument("file", "PIPELINE.toml", "Pipeline file.", type=FILE)


@group("pipeline")
def pipeline() -> None:
    """Run stages that events start: files, messages, a schedule, a metric, or the end of another stage."""


@pipeline.command("plan")
@file_argument
@json_option
def plan(file: Path, *, json: bool) -> None:
    """Show the graph, and for each stage its tier with the reason, time, cost and energy, without starting any."""
    with status("planning", quiet=json):
        pipeline_plan = plan_pipeline(file)
    print_answer(pipeline_plan, PIPELINE_PLAN, _print_plan, json=json)


@pipeline.command("run")
@file_argument
@option(
    "idle_s --until-idle", "TIME", "End when nothing was left to do for so long, such as 30s.", "never",
    type=parse_duration_s,
)  # fmt: skip
@flag("--retry-failed", "Try failed runs again.")
@json_option
def run(file: Path, *, idle_s: float | None, retry_failed: bool, json: bool) -> int:
    """Store events and run the stages that they start; run it again to resume, also after a kill.

    Each event is in exactly one run of each stage. The first Ctrl-C starts no more runs and waits for those in
    progress; a second one leaves them to the plane.
    """
    report = run_pipeline(file, idle_s=idle_s, retry_failed=retry_failed, report=print_note)
    if json:
        print_json(to_document(report, "leadline.pipeline-run/1"))
    else:
        failed = f", {report.failed} failed" if report.failed else ""
        left = f"; {report.left} in progress" if report.left else ""
        click.echo(f"{pluralize(report.events, 'new event')}, {report.completed} runs completed{failed}{left}")
    print_note(f"{report.ending}: resume with leadline pipeline run {file}")
    return INTERRUPTED if report.ending is PipelineEnding.INTERRUPTED else 0


@pipeline.command("status")
@argument(
    "subject", "PIPELINE", "Pipeline file, or the name of a pipeline that ran or is in this folder.", "all, in short",
    required=False,
)  # fmt: skip
@json_option
def show_status(subject: str | None, *, json: bool) -> None:
    """Show the events, the runs and the last metrics of each stage."""
    if subject is None:
        print_answer(list_pipelines(Path.cwd()), PIPELINES, _print_list, json=json)
        return
    file = Path(subject) if is_file(Path(subject)) else find_pipeline(subject, Path.cwd())
    print_answer(pipeline_status(file), PIPELINE, _print_status, json=json)


@pipeline.command("stop")
@file_argument
def stop(file: Path) -> None:
    """Ask the process that runs a pipeline to start no more runs, and to end with those in progress."""
    print_note(stop_pipeline(file))


pipeline.add_command(simulate)


def _print_plan(plan: PipelinePlan) -> None:
    click.echo(
        f"{plan.name}: {pluralize(len(plan.stages), 'stage')}; {format_bytes(plan.stored_bytes)} in {plan.folder}"
    )
    click.echo()
    print_table(
        ("event", "source", "starts"),
        [(event.name, event.source, ", ".join(event.starts) or "a count") for event in plan.events],
        words=("event", "source", "starts"),
    )
    click.echo()
    titles = ("stage", "tier", "time", "90 % range", "transfer", "reads", "cost", "energy")
    print_table(titles, [_stage_row(stage) for stage in plan.stages], words=("stage", "tier"))
    click.echo()
    for stage in plan.stages:
        basis = stage.forecast.basis
        known = "its time is unknown" if stage.forecast.elapsed_s is None else f"time from {basis}"
        click.echo(f"{', '.join(stage.on)} → {stage.name} at {stage.tier}: {stage.reason}; {known}")


def _stage_row(stage: PlannedStage) -> tuple[str, ...]:
    forecast = stage.forecast
    return (
        stage.name, forecast.tier, format_time(forecast.elapsed_s),
        format_range(forecast.elapsed_s),
        "none" if forecast.transfer_s and not forecast.transfer_s.high else format_time(forecast.transfer_s),
        format_bytes(stage.reads_bytes) if stage.reads_bytes else "",
        "unknown" if forecast.cost_usd is None else format_currency(forecast.cost_usd, "USD"),
        "unknown" if forecast.energy_j is None else format_energy(forecast.energy_j),
    )  # fmt: skip


def _print_list(shown: PipelineList) -> None:
    if not shown.pipelines:
        print_note("no pipelines here, and none has run: write a file PIPELINE.toml, then leadline pipeline run it")
        return
    rows = [(entry.name, _list_state(entry), entry.file) for entry in shown.pipelines]
    print_table(("pipeline", "state", "file"), rows, words=("pipeline", "state", "file"))


def _list_state(entry: PipelineEntry) -> str:
    if entry.error:
        return "its file is not valid"
    return "never run" if entry.status is None else entry.status.runner or "no process runs it"


def _print_status(shown: PipelineStatus) -> None:
    click.echo(f"{shown.name}: {shown.runner or 'no process runs it'}")
    click.echo()
    rows = [(event.name, event.source, str(event.events)) for event in shown.events]
    print_table(("event", "source", "stored"), rows, words=("event", "source"))
    click.echo()
    titles = ("stage", "waiting", "running", "done", "failed", "runs", "predicted", "last took", "metrics")
    print_table(titles, [_status_row(stage) for stage in shown.stages], words=("stage", "metrics"))
    for stage in shown.stages:
        for batch in stage.failed:
            click.echo(f"failed: {batch.label} ({pluralize(batch.events, 'event')}): {batch.reason}")


def _status_row(stage: StageStatus) -> tuple[str, ...]:
    counts, last = stage.counts, stage.last
    return (
        stage.name,
        *map(str, (counts.events_waiting, counts.events_running, counts.events_done, counts.events_failed)),
        str(counts.completed + counts.failed), format_time(last.predicted_s) if last else "",
        format_duration(last.elapsed_s) if last and last.elapsed_s else "",
        " ".join(f"{name}={value:.4g}" for name, value in stage.metrics.items()),
    )  # fmt: skip
