"""Run benchmarks by name: ``python3 dev bench NAME`` measures the promised metrics again."""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.results import BenchmarkResult, BenchmarkRow, missed_targets, target_sign
from leadline.core.documents import to_document, to_json
from leadline.core.errors import InvalidInput, UnknownName
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import err, out

BENCHES: dict[str, tuple[str, str]] = {
    "local": ("benchmarks.local.run", "small models predicted from the calibration, then measured here"),
    "trace": ("benchmarks.trace", "unmodified training scripts: traced, how fast, and with which peak of memory"),
    "probe": (
        "benchmarks.probe",
        "whole runs forecast from their first steps, and what watching a script costs it",
    ),
    "speed": ("benchmarks.speed", "how long estimates and start-up take beside the alternatives"),
    "harp": (
        "benchmarks.harp.run",
        "configurations never run, predicted as HARP does, by plain boosting and by Leadline",
    ),
    "dnn": (
        "benchmarks.dnn.run",
        "steps, kernels, collectives and whole runs of devices, models and scales that were held out",
    ),
    "memory": (
        "benchmarks.memory.run",
        "peaks of memory of real steps, foretold, and their bound, beside the alternatives",
    ),
    "fine-tunes": ("benchmarks.memory.fine_tunes", "published fine-tunes: memory with adapters and without"),
    "detectors": (
        "benchmarks.detectors.run",
        "published peaks of GPU memory of segmenters and detectors in training",
    ),
    "plane": (
        "benchmarks.plane.run",
        "jobs on a real Slurm: how fast, how surely, at what cost; waits and requests on a published trace",
    ),
    "catalog": ("benchmarks.catalog", "the whole catalog priced and ranked for one workload"),
}
"""Bench → (module with ``run(*, quick)``, one line of help); a module is imported only when its bench is called."""

SCHEMA = "leadline.bench/1"

app = CommandApp()


@app.command(epilog="Benches:\n" + "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in BENCHES.items()))
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"Which bench: {', '.join(BENCHES)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="A smaller run that still measures something true.")] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the rows to this file as JSON.", show_default="none"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A folder of public data, for benches that read it.", show_default="none"),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="PART", help="One part of a bench that has parts, such as plane.", show_default="all"),
    ] = None,
) -> None:
    """Measure promised figures again; the exit code is 1 when a target is missed."""
    if name not in BENCHES:
        raise UnknownName("bench", name, BENCHES)
    if json_file is not None and not json_file.parent.is_dir():
        raise InvalidInput(f"--json {json_file} cannot be written: there is no folder {json_file.parent}; create it")
    run = import_module(BENCHES[name][0]).run
    result = _run(run, _options(name, run, quick=quick, data=data, only=only), name)
    out().print(_table(result))
    if json_file is not None:
        json_file.write_text(to_json(to_document(result, SCHEMA)) + "\n", encoding="utf-8")
        err().print(f"written to {json_file}")
    if names := missed_targets(result.rows):
        sys.stderr.write(f"leadline bench: {len(names)} of {len(result.rows)} rows missed: {', '.join(names)}\n")
        raise typer.Exit(1)


def _options(
    name: str, run: Callable[..., BenchmarkResult], *, quick: bool, data: Path | None, only: str | None
) -> dict[str, object]:
    """Return what a bench is called with; what it does not take is refused."""
    options: dict[str, object] = {"quick": quick}
    known = inspect.signature(run).parameters
    if data is not None:
        if "data" not in known:
            raise InvalidInput(f"bench {name} reads no data: leave --data {data} out")
        if not data.is_dir():
            raise InvalidInput(f"--data {data} is not a folder: give the folder that holds the data")
        options["data"] = data
    if only is not None:
        if "only" not in known:
            raise InvalidInput(f"bench {name} has no parts: leave --only {only} out")
        options["only"] = only
    return options


def _run(run: Callable[..., BenchmarkResult], options: dict[str, object], name: str) -> BenchmarkResult:
    """Run a bench; one that takes long and counts its steps shows how far it is."""
    if "progress" not in inspect.signature(run).parameters:
        return run(**options)
    with err().status(f"bench {name}") as status:
        return run(
            **options, progress=lambda done, total: status.update(f"bench {name}: {done} of {total} questions answered")
        )


def _table(result: BenchmarkResult) -> Table:
    """Return the rows as a table; what was not measured says why."""
    table = Table(title=f"leadline bench {result.bench}", title_justify="left", box=None, pad_edge=False)
    table.add_column("figure")
    for heading in ("value", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("met", no_wrap=True)
    table.add_column("baseline", justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    for row in result.rows:
        table.add_row(
            row.name, _figure(row.value, row.unit), _target(row), _met(row), _figure(row.baseline, ""), row.how
        )
    return table


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.4g} {unit}".rstrip()


def _target(row: BenchmarkRow) -> str:
    """Write the target with the side it bounds."""
    if row.target is None:
        return ""
    if row.target_high is not None:
        return f"{row.target:.4g} – {row.target_high:.4g}"
    return f"{target_sign(row.value, row.target, row.met)}{row.target:.4g}"


def _met(row: BenchmarkRow) -> str:
    if row.value is None:
        return "not measured"
    return "" if row.met is None else "yes" if row.met else "NO"
