"""``leadline systems``: list, show, probe, check and validate the systems of the catalog."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.app.composition import process_runner, reload_catalog, toolbox, user_catalog
from leadline.app.settings import catalog_dir
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Machine
from leadline.core.recommendation import Constraints
from leadline.core.systems import NodeType, Partition, System
from leadline.core.units import GBIT_BYTES, format_bytes, format_duration, pluralize
from leadline.core.workload import Workload
from leadline.interfaces.cli.command import FILE, argument, flag, group, json_option
from leadline.interfaces.cli.output import print_answer, print_json, print_note, print_table, status
from leadline.interfaces.cli.workload_options import on_option, takes_workload

if TYPE_CHECKING:
    from leadline.app.jobs.broken_jobs import BrokenJob
    from leadline.app.machines.systems import SystemProbe


# `systems list` is frequent: each command imports its own verb.
@group("systems")
def systems() -> None:
    """List, show, probe, check and validate systems."""


@systems.command("list")
@json_option
def list_systems(*, json: bool) -> None:
    """List systems with their site, partitions and accelerators."""
    known = user_catalog().systems()
    if json:
        print_json({"schema": "leadline.systems/1", "systems": known})
        return
    rows = []
    for system in known:
        devices = ", ".join(sorted({row.node.device for row in system.partitions if row.node.device}))
        rows.append((system.name, system.site, system.kind, system.status, str(len(system.partitions)), devices))
    titles = ("system", "site", "kind", "status", "partitions", "accelerators")
    print_table(titles, rows, words=("system", "site", "kind", "status", "accelerators"))


@systems.command("show")
@argument("name", "NAME", "Name of the system, such as Pitzer.")
@json_option
def show(name: str, *, json: bool) -> None:
    """Show a system's partitions with their nodes, limits, prices and rules."""
    print_answer(user_catalog().system(name), "leadline.system/1", _show, json=json)


@systems.command("probe")
@argument("name", "NAME", "Name of the system in the catalog.", "the cluster's name", required=False)
@flag("--dry-run", "Print the file instead of writing it.")
@json_option
def probe(name: str | None, *, dry_run: bool, json: bool) -> None:
    """Read this machine's Slurm cluster into your catalog, and show changes since the last probe.

    It reads partitions, nodes, GPUs, limits and billing weights; nothing is submitted. Put your own additions in the
    file that it names, which a probe never overwrites.
    """
    from leadline.app.jobs.broken_jobs import announce_broken_jobs  # noqa: PLC0415 - see above
    from leadline.app.machines.systems import probe_system  # noqa: PLC0415 - see above

    today = date.today()  # noqa: DTZ011 - the user's local date
    probed = probe_system(
        name, run=process_runner(), catalog=user_catalog(), folder=catalog_dir(), today=today, save=not dry_run
    )
    reload_catalog()
    broken = announce_broken_jobs(probed.change, write=not dry_run)
    if json:
        change = probed.change
        print_json({
            "schema": "leadline.system_probe/1", "system": probed.system, "file": None if dry_run else probed.file,
            "kept": probed.kept, "first": change.before is None, "changes": change.changes, "broken": broken,
            "notes": probed.notes, "here": probed.here,
        })  # fmt: skip
    elif dry_run:
        click.echo(probed.text, nl=False)
    else:
        _show(probed.system)
    _print_probe_notes(probed, broken, dry_run=dry_run, json=json)


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
        print_note(line)


def _describe_machine(machine: Machine) -> str:
    calibrated = "calibrated" if machine.processor else "not calibrated"
    gpus = " + ".join(sorted(set(machine.gpus))) or "no GPUs"
    memory = format_bytes(machine.memory_bytes)
    return f"this machine: {machine.host}, {machine.cpu_model} ({machine.cpus} CPUs, {calibrated}), {memory}, {gpus}"


@systems.command("check")
@on_option
@json_option
@takes_workload
def check(work: Workload, *, on: tuple[str, ...], json: bool) -> None:
    """Check for each partition whether a workload fits, and if not, why."""
    from leadline.app.estimate.recommend import recommend  # noqa: PLC0415 - see above

    with status("checking", quiet=json):
        answer = recommend(work, toolbox(), Constraints(), on=on)
    rows = [(option.system, option.partition, True, "") for option in answer.options]
    rows += [(rejection.system, rejection.partition, False, rejection.reason) for rejection in answer.rejections]
    rows.sort()
    if json:
        fields = ("system", "partition", "fits", "reason")
        print_json({"schema": "leadline.check/1", "places": [dict(zip(fields, row, strict=True)) for row in rows]})
        return
    cells = [(f"{system}:{partition}", "yes" if fits else "no", reason) for system, partition, fits, reason in rows]
    print_table(("place", "fits", "reason"), cells, words=("place", "fits", "reason"))


@systems.command("validate")
@argument(
    "file", "FILE", "TOML file of devices or of a site, or JSON record of a device.", "the whole catalog",
    required=False, type=FILE,
)  # fmt: skip
@json_option
def validate(file: Path | None, *, json: bool) -> None:
    """Check the catalog for impossible entries and outdated prices, or a file also for every fault in its writing.

    Errors include unknown keys, zero prices, sparse peaks instead of dense ones, and unknown devices.
    """
    from leadline.app.machines.systems import check_catalog  # noqa: PLC0415 - see above

    findings = check_catalog(user_catalog(), file)
    errors = [finding for finding in findings if finding.error]
    if json:
        print_json({"schema": "leadline.findings/1", "findings": findings})
    else:
        for finding in findings:
            word = "error" if finding.error else "warning"
            place = f"{file}:" if finding.entry == str(file) else finding.entry
            line = f" line {finding.line}:" if finding.line else ""
            click.echo(f"{word}: {place}{line} {finding.problem}: {finding.fix}")
        print_note(f"{pluralize(len(errors), 'error')}, {pluralize(len(findings) - len(errors), 'warning')}")
    if errors:
        first = f"{errors[0].entry} {errors[0].problem}"
        raise InvalidInput(f"the catalog has {pluralize(len(errors), 'error')}; the first: {first}")


def _show(system: System) -> None:
    click.secho(f"{system.name}, {system.site} ({system.kind}, {system.status}, {system.scheduler})", bold=True)
    rows = []
    for partition in system.partitions:
        node = partition.node
        rows.append((
            partition.name, _known(node.count), _known(node.cores),
            format_bytes(node.memory_bytes) if node.memory_bytes else "unknown",
            f"{node.gpus or '?'} × {node.device or '?'}" if node.device or node.gpus else "",
            format_duration(partition.limits.max_walltime_s) if partition.limits.max_walltime_s else "unknown",
            "unknown" if partition.billing is None else partition.billing.price_text(),
        ))  # fmt: skip
    titles = ("partition", "nodes", "cores", "memory", "GPUs", "walltime", "price per hour")
    print_table(titles, rows, words=("partition", "GPUs", "price per hour"))
    for note in sorted({note for partition in system.partitions for note in _notes(partition)}):
        click.secho(f"· {note}", dim=True)
    click.secho(f"source: {system.source} ({system.as_of or 'no date'})", dim=True)


def _notes(partition: Partition) -> list[str]:
    rules = partition.rules
    notes = [f"{partition.name}: {partition.note}"] if partition.note else []
    notes += _network(partition.node)
    if partition.node.power_limit_w:
        notes.append(f"power limit of {partition.node.name} nodes: {partition.node.power_limit_w:g} W a GPU")
    notes += [f"rejects {', '.join(rules.rejects)}"] if rules.rejects else []
    notes += [f"requires {', '.join(rules.requires)}"] if rules.requires else []
    return notes + list(rules.notes)


def _network(node: NodeType) -> list[str]:
    """Return a sentence about the network of a node type; empty if nothing is known of it."""
    parts = [node.network_technology] if node.network_technology else []
    parts += [pluralize(node.nics, "NIC")] if node.nics else []
    parts += [f"{node.scale_up_gpus} GPUs in a scale-up domain"] if node.scale_up_gpus else []
    if node.network_bytes_per_s is None and not parts:
        return []
    rate = f"{node.network_bytes_per_s / GBIT_BYTES:g} Gb/s" if node.network_bytes_per_s else "unknown rate"
    details = f" ({', '.join(parts)})" if parts else ""
    return [f"network of {node.name} nodes: {rate}{details}"]


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)
