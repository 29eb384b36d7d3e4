"""``leadline demo``: calibrate, predict, run and compare three real jobs."""

import click

from leadline.app.demo.run import CALIBRATION_S, DEMO_JOBS, DemoJob, calibrate_here, run_demo_job
from leadline.app.jobs.history import compare_run
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli.command import command, option
from leadline.interfaces.cli.output import format_cost, print_note, print_table
from leadline.interfaces.tables import format_limits, format_time


@command("demo")
@option("--budget", "SECONDS", "Time limit of the calibration; at least 10.", type=float, default=CALIBRATION_S)
def demo(*, budget: float) -> None:
    """Calibrate this machine, predict three training jobs from their scripts, run them, and compare."""
    device = calibrate_here(print_note, budget)
    click.secho(f"This machine: {device.name}", bold=True)
    jobs = []
    for name in DEMO_JOBS:
        jobs.append(run_demo_job(name, print_note))
        _recommended(jobs[-1])
    click.secho("\nPredicted and measured:", bold=True)
    _print_comparison(jobs)
    click.secho("The runs are in your history: leadline history show", dim=True)


def _recommended(job: DemoJob) -> None:
    """Print the request for each site."""
    click.secho(f"\n{job.name}: requests on other systems", bold=True)
    rows = []
    for site, answer in job.recommendations.items():
        if not answer.options:
            rows.append((f"  {site}", answer.smallest_change or "nothing fits", "", "", "", ""))
            continue
        best = answer.options[0]
        rows.append((
            f"  {best.system}:{best.partition}", best.estimate.target.device, *format_limits(best.resources),
            format_time(best.estimate.elapsed_s), format_cost(best.estimate),
        ))  # fmt: skip
    titles = ("  partition", "device", "walltime", "memory", "predicted", "cost")
    print_table(titles, rows, words=("  partition", "device"))


def _print_comparison(jobs: list[DemoJob]) -> None:
    rows = []
    for job in jobs:
        for row in compare_run(job.run):
            if row.predicted is None or row.measured is None or row.error is None:
                continue
            shown = format_bytes if row.quantity.endswith("_bytes") else format_duration
            rows.append((
                job.name, row.quantity.rpartition("_")[0].replace("_", " "), shown(row.predicted.point),
                f"{shown(row.predicted.low)} – {shown(row.predicted.high)}", shown(row.measured),
                f"{row.error:+.0%}",
            ))  # fmt: skip
    print_table(("job", "quantity", "predicted", "90 % range", "measured", "error"), rows, words=("job", "quantity"))
