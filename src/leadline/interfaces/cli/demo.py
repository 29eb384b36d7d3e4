"""``leadline demo``: calibrate, predict, run and compare three real jobs."""

from typing import Annotated

import typer
from rich.table import Table

from leadline.app.demo.run import CALIBRATION_S, DEMO_JOBS, DemoJob, calibrate_here, run_demo_job
from leadline.app.jobs.history import compare_run
from leadline.core.units import format_bytes, format_clock, format_duration
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import err, format_cost, out

app = CommandApp()


@app.command()
def demo(
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time limit of the calibration; at least 10.")
    ] = CALIBRATION_S,
) -> None:
    """Calibrate this machine, predict three training jobs from their scripts, run them, and compare."""
    console, progress = out(), err()

    def say(text: str) -> None:
        progress.print(text, style="dim", markup=False)

    device = calibrate_here(say, budget)
    console.print(f"This machine: {device.name}", style="bold")
    jobs = []
    for name in DEMO_JOBS:
        job = run_demo_job(name, say)
        jobs.append(job)
        _recommended(job)
    console.print("\nPredicted and measured:", style="bold")
    console.print(_comparison(jobs))
    console.print("The runs are in your history: leadline history show", style="dim")


def _recommended(job: DemoJob) -> None:
    """Print the request for each site."""
    console = out()
    console.print(f"\n{job.name}: requests on other systems", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("  partition", "device", "walltime", "memory", "predicted", "cost", ""):
        table.add_column(title, no_wrap=True)
    for site, answer in job.recommendations.items():
        if not answer.options:
            table.add_row(f"  {site}", answer.smallest_change or "nothing fits", "", "", "", "", "")
            continue
        best = answer.options[0]
        request, elapsed = best.resources, best.estimate.elapsed_s
        table.add_row(
            f"  {best.system}:{best.partition}",
            best.estimate.target.device,
            format_clock(request.walltime_s) if request.walltime_s else "",
            format_bytes(request.memory_bytes_per_node) if request.memory_bytes_per_node else "",
            format_duration(elapsed.point) if elapsed else "unknown",
            *format_cost(best.estimate),
        )
    console.print(table)


def _comparison(jobs: list[DemoJob]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("job", "quantity", "predicted", "90 % range", "measured", "error"):
        table.add_column(title, justify="left" if title in ("job", "quantity") else "right", no_wrap=True)
    for job in jobs:
        for row in compare_run(job.run):
            if row.predicted is None or row.measured is None or row.error is None:
                continue
            shown = format_bytes if row.quantity.endswith("_bytes") else format_duration
            table.add_row(
                job.name,
                row.quantity.rpartition("_")[0].replace("_", " "),
                shown(row.predicted.point),
                f"{shown(row.predicted.low)} – {shown(row.predicted.high)}",
                shown(row.measured),
                f"{row.error:+.0%}",
            )
    return table
