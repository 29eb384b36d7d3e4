"""Rows of whole seasons of the field station, without faults and with them."""

from dataclasses import replace
from pathlib import Path

from benchmarks.field.station import QUICK, SeasonPlan, run_season
from benchmarks.field.station_report import StationReport, TimeErrors
from benchmarks.results import BenchmarkRow, at_least, at_most
from leadline.core.errors import LeadlineError
from leadline.interfaces.cli.output import print_note

IMAGES, DRIFTS, RETRAININGS, MOST_S, MOST_ERROR = 5000, 3, 3, 600.0, 25.0
"""What the whole season must reach; the last one is in percent."""


def station_rows(folder: Path, *, quick: bool, faults: bool) -> list[BenchmarkRow]:
    """Run a season with the real parts and return its rows; the folder keeps report.json.

    A quick season is too short for drifts, so its rows have no targets for them.
    """
    plan = replace(QUICK if quick else SeasonPlan(), faults=faults)
    name = "season with faults" if faults else "season"
    folder.mkdir(parents=True)
    try:
        report = run_season(plan, folder, print_note)
    except LeadlineError as error:
        return [BenchmarkRow(f"{name}: every image accounted for", None, "", target=1.0, how=str(error))]
    (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
    rows = [_accounted(name, report)]
    if not quick:
        rows += _reached(name, report)
    if not faults and report.errors:
        rows += _stage_times(report)
    return rows


def _accounted(name: str, report: StationReport) -> BenchmarkRow:
    counts = report.counts
    how = (
        f"{counts['ingested']} ingested = {counts['labelled']} labelled + {counts['filtered']} filtered + "
        f"{counts['queued']} queued + {counts['corrupt']} corrupt; {report.stored} events of {report.images} published "
        f"images; {report.tries} runs tried again, {report.failed} failed"
    )
    if report.faults:
        how += f"; {', '.join(fault.name for fault in report.faults)}, one corrupt image, one image sent twice"
    return at_least(f"{name}: every image accounted for", float(report.complete), 1.0, "", n=report.images, how=how)


def _reached(name: str, report: StationReport) -> list[BenchmarkRow]:
    score = report.score
    return [
        at_least(f"{name}: images", float(report.images), IMAGES, ""),
        at_least(f"{name}: drifts detected", float(len(score["drifts"])), DRIFTS, "", how="by ADWIN, at the edge"),
        at_least(
            f"{name}: retrainings on Slurm", float(sum(run.tier == "hpc" for run in report.retrainings)), RETRAININGS,
            "", how=f"{report.deployed} deployed, {report.rolled_back} rolled back",
        ),
        at_most(f"{name}: time", report.elapsed_s, MOST_S, "s", how="start of broker and Slurm, first model, season"),
        BenchmarkRow(
            f"{name}: accuracy", 100 * score["accuracy"], "%", n=report.images,
            how=f"{score['reviewed']} reviews; the model's age is {score['age']['mean']:.0f} images in the mean; "
            f"the policies in one process, on the same images and with the same delay of roll-outs: {report.policies}",
        ),
    ]  # fmt: skip


def _stage_times(report: StationReport) -> list[BenchmarkRow]:
    rows = []
    for stage, error in report.errors.items():
        name = "all stages" if stage == "all" else f"stage {stage}"
        goal = MOST_ERROR if stage in ("all", "retrain") else None
        rows.append(_stage_time(name, error, goal))
    error = report.errors["all"]
    rows.append(
        BenchmarkRow(
            "time of stages: median error after refitting",
            100 * error.refitted,
            "%",
            baseline=100 * error.frozen,
            n=error.refits,
            how="refitted after each run; baseline: the fit of before the second retraining, kept",
        )
    )
    return rows


def _stage_time(name: str, error: TimeErrors, goal: float | None) -> BenchmarkRow:
    value, last = 100 * error.refitted, 100 * error.last
    return BenchmarkRow(
        f"time of {name}: median error",
        value,
        "%",
        target=goal,
        # Only what retraining reads grows over a season.
        met=None if goal is None else value <= goal and (name != "stage retrain" or value < last),
        baseline=last,
        n=error.runs,
        how="runs from the second retraining on; baseline: as long as the last run",
    )
