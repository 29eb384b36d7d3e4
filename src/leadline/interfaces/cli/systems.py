"""``leadline systems``: list, show, probe, check and validate the systems of the catalog."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from leadline.app.composition import process_runner, reload_catalog, toolbox, user_catalog
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

if TYPE_CHECKING:
    from leadline.app.jobs.broken_jobs import BrokenJob
    from leadline.app.machines.systems import SystemProbe

# `systems list` and the help are frequent: each command imports its own verb.
app = CommandApp(group=True, help="List, show, probe, check and validate systems.")


@app.command(name="list")
def list_systems(json: Json = False) -> None:
    """List systems with their site, partitions and accelerators."""
    systems = user_catalog().systems()
    if json:
        print_json({"schema": "leadline.systems/1", "systems": systems})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("system", "site", "kind", "status", "partitions", "accelerators"):
        table.add_column(title, no_wrap=title != "accelerators", justify="right" if title == "partitions" else "left")
    for system in systems:
        devices = sorted({partition.node.device for partition in system.partitions if partition.node.device})
        table.add_row(
            system.name, system.site, system.kind, system.status, str(len(system.partitions)), ", ".join(devices)
        )
    out().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the system, such as Pitzer.")], json: Json = False
) -> None:
    """Show a system's partitions with their nodes, limits, prices and rules."""
    system = user_catalog().system(name)
    if json:
        print_json(to_document(system, "leadline.system/1"))
        return
    _show(system)


@app.command()
def probe(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the system in the catalog.", show_default="the cluster's name"),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the file instead of writing it.")] = False,
    json: Json = False,
) -> None:
    """Read this machine's Slurm cluster into your catalog, and show changes since the last probe.

    It reads partitions, nodes, GPUs, limits and billing weights; nothing is submitted. Put your own additions in the
    file
    that it names, which a probe never overwrites.
    """
    from leadline.app.jobs.broken_jobs import announce_broken_jobs  # noqa: PLC0415 - see above
    from leadline.app.machines.systems import probe_system  # noqa: PLC0415 - see above

    probed = probe_system(
        name,
        run=process_runner(),
        catalog=user_catalog(),
        folder=catalog_dir(),
        today=date.today(),  # noqa: DTZ011 - the user's local date
        save=not dry_run,
    )
    reload_catalog()
    broken = announce_broken_jobs(probed.change, write=not dry_run)
    if json:
        print_json(_probe_document(probed, broken, written=not dry_run))
    elif dry_run:
        write_text(probed.text)
    else:
        _show(probed.system)
    _print_probe_notes(probed, broken, dry_run=dry_run, json=json)


def _probe_document(probed: "SystemProbe", broken: Sequence["BrokenJob"], *, written: bool) -> dict[str, object]:
    change = probed.change
    return {
        "schema": "leadline.system_probe/1",
        "system": probed.system,
        "file": probed.file if written else None,
        "kept": probed.kept,
        "first": change.before is None,
        "changes": change.changes,
        "broken": broken,
        "notes": probed.notes,
        "here": probed.here,
    }


def _print_probe_notes(probed: "SystemProbe", broken: Sequence["BrokenJob"], *, dry_run: bool, json: bool) -> None:
    """Print changes, the waiting jobs that they broke, notes, and the file."""
    lines = []
    if not json:
        lines += [f"changed: {change.sentence}" for change in probed.change.changes]
        if probed.change.before is not None and not probed.change.changes:
            lines.append("no changes since the last probe")
        lines += [f"broken: {broken_job.sentence}" for broken_job in broken]
        lines += [*(f"note: {note}" for note in probed.notes), _describe_machine(probed.here)]
    if not dry_run:
        kept = f"; the previous file is {probed.kept}" if probed.kept else ""
        lines.append(f"written to {probed.file}{kept}")
    for line in lines:
        err().print(line, markup=False, soft_wrap=True)


def _describe_machine(machine: Machine) -> str:
    calibrated = "calibrated" if machine.processor else "not calibrated"
    gpus = " + ".join(sorted(set(machine.gpus))) or "no GPUs"
    memory = format_bytes(machine.memory_bytes)
    return f"this machine: {machine.host}, {machine.cpu_model} ({machine.cpus} CPUs, {calibrated}), {memory}, {gpus}"


@app.command()
@takes_workload
def check(work: Workload, *, on: On = None, json: Json = False) -> None:
    """Check for each partition whether a workload fits, and if not, why."""
    from leadline.app.estimate.recommend import recommend  # noqa: PLC0415 - see above

    answer = recommend(work, toolbox(), Constraints(), on=on or ())
    rows = [(option.system, option.partition, True, "") for option in answer.options]
    rows += [(rejection.system, rejection.partition, False, rejection.reason) for rejection in answer.rejections]
    rows.sort()
    if json:
        fields = ("system", "partition", "fits", "reason")
        print_json({"schema": "leadline.check/1", "places": [dict(zip(fields, row, strict=True)) for row in rows]})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("place", "fits", "reason"):
        table.add_column(title, no_wrap=title == "place")
    for system, partition, fits, reason in rows:
        table.add_row(f"{system}:{partition}", "yes" if fits else "no", reason)
    out().print(table)


@app.command()
def validate(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="TOML file of devices or of a site.", show_default="the whole catalog"),
    ] = None,
    json: Json = False,
) -> None:
    """Check the catalog for impossible entries and outdated prices.

    Errors include zero prices, sparse peaks instead of dense ones, and unknown devices.
    """
    from leadline.app.machines.systems import check_catalog  # noqa: PLC0415 - see above

    findings = check_catalog(user_catalog(), file)
    errors = [finding for finding in findings if finding.error]
    if json:
        print_json({"schema": "leadline.findings/1", "findings": findings})
    else:
        for finding in findings:
            word = "error" if finding.error else "warning"
            out().print(f"{word}: {finding.entry} {finding.problem}: {finding.fix}", markup=False)
        err().print(f"{_counted(len(errors), 'error')}, {_counted(len(findings) - len(errors), 'warning')}")
    if errors:
        first = f"{errors[0].entry} {errors[0].problem}"
        raise InvalidInput(f"the catalog has {_counted(len(errors), 'error')}; the first: {first}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _show(system: System) -> None:
    console = out()
    console.print(f"{system.name}, {system.site} ({system.kind}, {system.status}, {system.scheduler})", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("partition", "nodes", "cores", "memory", "GPUs", "walltime", "price per hour"):
        table.add_column(title, no_wrap=True)
    for partition in system.partitions:
        node = partition.node
        table.add_row(
            partition.name,
            _known(node.count),
            _known(node.cores),
            format_bytes(node.memory_bytes) if node.memory_bytes else "unknown",
            f"{node.gpus or '?'} × {node.device or '?'}" if node.device or node.gpus else "",
            format_duration(partition.limits.max_walltime_s) if partition.limits.max_walltime_s else "unknown",
            _price(partition.billing),
        )
    console.print(table)
    for note in sorted({note for partition in system.partitions for note in _notes(partition)}):
        console.print(f"· {note}", style="dim", markup=False)
    console.print(f"source: {system.source} ({system.as_of or 'no date'})", style="dim", markup=False)


def _notes(partition: Partition) -> list[str]:
    rules = partition.rules
    notes = [f"{partition.name}: {partition.note}"] if partition.note else []
    notes += [f"rejects {', '.join(rules.rejects)}"] if rules.rejects else []
    notes += [f"requires {', '.join(rules.requires)}"] if rules.requires else []
    return notes + list(rules.notes)


def _price(billing: Billing | None) -> str:
    return "unknown" if billing is None else billing.price_text()


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)
