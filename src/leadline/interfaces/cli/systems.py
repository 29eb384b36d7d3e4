"""``leadline systems``: list, show, probe, check and validate the systems of the catalog."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from leadline.app.composition import process_runner, toolbox
from leadline.app.estimate.recommend import recommend
from leadline.app.jobs.broken_jobs import BrokenJob, announce_broken_jobs
from leadline.app.machines.systems import SCHEMA, SystemProbe, check_catalog, probe_system
from leadline.app.settings import catalog_dir
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Machine
from leadline.core.recommendation import Constraints
from leadline.core.systems import Billing, Partition, System
from leadline.core.units import format_bytes, format_duration
from leadline.core.workload import Workload
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json, write_text
from leadline.interfaces.cli.workload_options import On, takes_workload

app = CommandApp(group=True, help="List, show, probe, check and validate the known systems.")


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
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The system's name, such as Pitzer.")], json: Json = False
) -> None:
    """Show a system's partitions with their nodes, limits, prices and rules."""
    system = toolbox().catalog.system(name)
    if json:
        print_json(to_document(system, "leadline.system/1"))
        return
    _show(system)


@app.command()
def probe(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="What to call it.", show_default="the cluster's own name"),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the file instead of writing it.")] = False,
    json: Json = False,
) -> None:
    """Read the Slurm cluster at hand into your catalog, and say what changed since the last time.

    Its partitions, nodes, GPUs, limits and billing weights are asked for; nothing is submitted. What you add yourself
    belongs into a file of its own, which a probe never writes.
    """
    found = probe_system(
        name,
        run=process_runner(),
        catalog=toolbox().catalog,
        folder=catalog_dir(),
        today=date.today(),  # noqa: DTZ011 - the day on which it was asked, where the user is
        save=not dry_run,
    )
    toolbox.cache_clear()  # its catalog was read before
    broken = announce_broken_jobs(found.change, write=not dry_run)
    if json:
        print_json(_probe_document(found, broken, written=not dry_run))
    elif dry_run:
        write_text(found.text)
    else:
        _show(found.system)
    _say_probed(found, broken, dry_run=dry_run, json=json)


def _probe_document(found: SystemProbe, broken: Sequence[BrokenJob], *, written: bool) -> dict[str, object]:
    change = found.change
    return {
        "schema": SCHEMA,
        "system": found.system,
        "file": found.file if written else None,
        "kept": found.kept,
        "first": change.before is None,
        "changes": change.changes,
        "broken": broken,
        "notes": found.notes,
        "here": found.here,
    }


def _say_probed(found: SystemProbe, broken: Sequence[BrokenJob], *, dry_run: bool, json: bool) -> None:
    """Say what changed, which waiting jobs that broke, what is not known and where the file is."""
    lines = []
    if not json:
        lines += [f"changed: {one.sentence}" for one in found.change.changes]
        if found.change.before is not None and not found.change.changes:
            lines.append("nothing changed since the last probe")
        lines += [f"broken: {one.sentence}" for one in broken]
        lines += [*(f"note: {note}" for note in found.notes), _machine(found.here)]
    if not dry_run:
        kept = f"; what stood there is {found.kept}" if found.kept else ""
        lines.append(f"written to {found.file}{kept}")
    for line in lines:
        err().print(line, markup=False, soft_wrap=True)


def _machine(here: Machine) -> str:
    calibrated = "calibrated" if here.processor else "not calibrated"
    gpus = " + ".join(sorted(set(here.gpus))) or "no GPUs"
    memory = format_bytes(here.memory_bytes)
    return f"here: {here.host}, {here.cpu_model} ({here.cpus} CPUs, {calibrated}), {memory}, {gpus}"


@app.command()
@takes_workload
def check(work: Workload, *, on: On = None, json: Json = False) -> None:
    """Say of each partition whether a workload fits there, and if not, why."""
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
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A TOML file of devices or of a site.", show_default="the whole catalog"),
    ] = None,
    json: Json = False,
) -> None:
    """Refuse entries that cannot be true, and warn of stale prices.

    Among them: zero prices, sparse peaks in place of dense ones, devices that the catalog does not have.
    """
    found = check_catalog(toolbox().catalog, file)
    errors = [finding for finding in found if finding.error]
    if json:
        print_json({"schema": "leadline.findings/1", "findings": found})
    else:
        for finding in found:
            word = "error" if finding.error else "warning"
            out().print(f"{word}: {finding.entry} {finding.problem}: {finding.fix}", markup=False)
        err().print(f"{_counted(len(errors), 'error')}, {_counted(len(found) - len(errors), 'warning')}")
    if errors:
        first = f"{errors[0].entry} {errors[0].problem}"
        raise InvalidInput(f"the catalog cannot be true ({_counted(len(errors), 'error')}, the first: {first})")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


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
            f"{node.gpus or '?'} × {node.device or '?'}" if node.device or node.gpus else "",
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
    return "not known" if billing is None else billing.price_text()


def _known(value: int | None) -> str:
    return "not known" if value is None else str(value)
