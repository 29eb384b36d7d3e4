"""``leadline systems``: list, show, check and validate the systems of the catalog."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from leadline.app.composition import toolbox
from leadline.app.recommend import recommend
from leadline.app.systems import check_catalog
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.core.recommendation import Constraints
from leadline.core.systems import Billing, Partition, System
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli import workload_options as opt
from leadline.interfaces.cli.face import JSON_HELP, err, out, print_json

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help=JSON_HELP)]


@app.callback()
def systems() -> None:
    """List, show, check and validate the known systems."""


@app.command(name="list")
def list_systems(json: Json = False) -> None:
    """List the systems with their site, partitions and accelerators."""
    known = toolbox().catalog.systems()
    if json:
        print_json({"schema": "leadline.systems/1", "systems": known})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("system", "site", "kind", "status", "partitions", "accelerators"):
        table.add_column(title, no_wrap=title != "accelerators", justify="right" if title == "partitions" else "left")
    for system in known:
        devices = sorted({one.node.device for one in system.partitions if one.node.device})
        table.add_row(
            system.name, system.site, system.kind, system.status, str(len(system.partitions)), ", ".join(devices)
        )
    out().print(table)


@app.command()
def show(name: Annotated[str, typer.Argument(help="The system's name.")], json: Json = False) -> None:
    """Show a system's partitions: nodes, limits, prices, and what its scheduler takes."""
    system = toolbox().catalog.system(name)
    if json:
        print_json(to_document(system, "leadline.system/1"))
        return
    _show(system)


@app.command()
def check(
    workload: opt.Subject = None,
    on: opt.On = None,
    batch: opt.Batch = None,
    seq: opt.Seq = None,
    input: opt.Input = None,  # noqa: A002 - named as its option
    precision: opt.PrecisionOption = None,
    epochs: opt.Epochs = None,
    steps: opt.Steps = None,
    samples: opt.Samples = None,
    gpus: opt.Gpus = None,
    phase: opt.PhaseOption = None,
    json: Json = False,
) -> None:
    """Say for each partition whether a workload fits there, and if not, why."""
    work = opt.workload_from(
        workload, batch=batch, seq=seq, input=input, precision=precision, epochs=epochs, steps=steps, samples=samples,
        gpus=gpus, phase=phase,
    )  # fmt: skip
    answer = recommend(work, toolbox(), Constraints(), on=on or ())
    rows = [(one.system, one.partition, True, "") for one in answer.options]
    rows += [(one.system, one.partition, False, one.reason) for one in answer.rejections]
    rows.sort()
    if json:
        fields = ("system", "partition", "fits", "reason")
        print_json({"schema": "leadline.check/1", "places": [dict(zip(fields, row, strict=True)) for row in rows]})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("place", "fits", "because"):
        table.add_column(title, no_wrap=title == "place")
    for system, partition, fits, reason in rows:
        table.add_row(f"{system}:{partition}", "yes" if fits else "no", reason)
    out().print(table)


@app.command()
def validate(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; the whole catalog without one.")] = None,
    json: Json = False,
) -> None:
    """Refuse entries that cannot be true: zero prices, sparse peaks, unknown devices; warn of stale prices."""
    found = check_catalog(toolbox().catalog, file)
    errors = [finding for finding in found if finding.error]
    if json:
        print_json({"schema": "leadline.findings/1", "findings": found})
    else:
        for finding in found:
            word = "error" if finding.error else "warning"
            out().print(f"{word}: {finding.entry} {finding.problem}: {finding.fix}", markup=False)
        err().print(f"{len(errors)} errors, {len(found) - len(errors)} warnings")
    if errors:
        raise InvalidInput(f"{len(errors)} entries cannot be true, the first: {errors[0].entry} {errors[0].problem}")


def _show(system: System) -> None:
    console = out()
    console.print(f"{system.name}, {system.site} ({system.kind}, {system.status}, {system.scheduler})", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("partition", "nodes", "cores", "memory", "GPUs", "walltime", "price an hour"):
        table.add_column(title, no_wrap=True)
    for one in system.partitions:
        node = one.node
        table.add_row(
            one.name,
            _known(node.count),
            _known(node.cores),
            format_bytes(node.memory_bytes) if node.memory_bytes else "not known",
            f"{node.gpus or '?'} × {node.device}" if node.device else "",
            format_duration(one.limits.max_walltime_s) if one.limits.max_walltime_s else "not known",
            _price(one.billing),
        )
    console.print(table)
    for note in sorted({note for one in system.partitions for note in _notes(one)}):
        console.print(f"· {note}", style="dim", markup=False)
    console.print(f"source: {system.source} ({system.as_of or 'no date'})", style="dim", markup=False)


def _notes(partition: Partition) -> list[str]:
    rules = partition.rules
    notes = [f"{partition.name}: {partition.note}"] if partition.note else []
    notes += [f"rejects {', '.join(rules.rejects)}"] if rules.rejects else []
    notes += [f"requires {', '.join(rules.requires)}"] if rules.requires else []
    return notes + list(rules.notes)


def _price(billing: Billing | None) -> str:
    if billing is None:
        return "not known"
    if billing.free:
        return "free"
    rates = (("core", billing.core_hour), ("GPU", billing.gpu_hour), ("node", billing.node_hour))
    known = [f"{rate * billing.charge_factor:g} a {unit}" for unit, rate in rates if rate is not None]
    return f"{' + '.join(known)} ({billing.currency})" if known else "not known"


def _known(value: int | None) -> str:
    return "not known" if value is None else str(value)
