"""The verbs ``systems probe`` and ``systems validate``: read a live Slurm into the catalog, and check the catalog."""

import getpass
import grp
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from leadline.app.machines.this_machine import describe_machine
from leadline.app.settings import refuse_unwritable, require_writable
from leadline.catalog.compare import compare_systems
from leadline.catalog.read import ADDITIONS, SITES, read_record
from leadline.catalog.slurm.site import ClusterRecords
from leadline.catalog.slurm.site import build_system as read_slurm
from leadline.catalog.slurm.text import (
    ASSOCIATION,
    QOS,
    SINFO,
    Record,
    from_sinfo,
    read_nodes,
    read_partitions,
    read_rows,
    read_slurm_config,
)
from leadline.catalog.toml_files import read_devices, read_site, read_valid_entries
from leadline.catalog.validate import Finding, validate_catalog
from leadline.catalog.write import format_site
from leadline.core.document_errors import InvalidFile
from leadline.core.documents import MOST_TOML_BYTES, parse_toml
from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.frozen import Frozen
from leadline.core.hardware import Machine
from leadline.core.ports import Catalog
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.systems import System, SystemChange
from leadline.files.atomic import write_atomically
from leadline.files.read import read_input_text

COMMAND_S = 60.0
"""Timeout of a Slurm command; with the controller down, scontrol gives up after some ten seconds by itself."""
_SILENT = (
    "unable to contact", "connection refused", "connect failure", "timed out", "configuration source", "resolve_ctls",
)  # fmt: skip
"""Parts of Slurm's messages that mean an unreachable controller, and not a missing permission."""


def query_slurm(
    run: ProcessRunner, *, user: str, groups: frozenset[str], machine: Machine | None = None
) -> tuple[ClusterRecords, tuple[str, ...]]:
    """Return the cluster's configuration, partitions, nodes and limits as ``user`` may see them, and failed commands.

    Raises:
        SchedulerUnreachable: there is no Slurm on this machine, or its controller does not answer.
        LeadlineError: it shows its partitions to operators only.
    """
    config = _config(run)
    notes: list[str] = []
    partitions, nodes = _partitions_and_nodes(run, notes)
    qos = associations = None
    if config.get("AccountingStorageType", "").endswith("none"):
        notes.append("the cluster keeps no accounting, so QOS and account limits are unknown")
    else:
        qos = _accounting(run, notes, "QOS", ["show", "qos"], QOS)
        cluster = [f"cluster={config['ClusterName']}"] if "ClusterName" in config else []
        associations = _accounting(
            run, notes, "your accounts", ["show", "assoc", "where", f"user={user}", *cluster], ASSOCIATION
        )
        if associations:
            accounts = ["show", "assoc", "where", "user=", *cluster]
            shared = _accounting(run, notes, "the shared limits of your accounts", accounts, ASSOCIATION) or []
            associations = [*associations, *(row for row in shared if not row["User"])]
    return ClusterRecords(config, partitions, nodes, qos, associations, groups, machine), tuple(notes)


def _config(run: ProcessRunner) -> Record:
    try:
        answer = run(["scontrol", "show", "config"], timeout_s=COMMAND_S)
    except InvalidInput as error:
        raise SchedulerUnreachable(
            "no Slurm on this machine (scontrol does not start): probe from a login node of the cluster"
        ) from error
    if answer.returncode != 0 or answer.timed_out:
        raise _unreachable(answer)
    return read_slurm_config(answer.stdout)


def _partitions_and_nodes(run: ProcessRunner, notes: list[str]) -> tuple[Sequence[Record], Sequence[Record]]:
    """Return both from scontrol, or from sinfo where scontrol is not permitted."""
    answers = {kind: run(["scontrol", "-a", "-o", "show", kind], timeout_s=COMMAND_S) for kind in ("partition", "node")}
    for answer in answers.values():
        if answer.returncode != 0 and _is_silent(answer):
            raise _unreachable(answer)
    partitions = read_partitions(answers["partition"].stdout)
    nodes = read_nodes(answers["node"].stdout)
    if partitions and nodes:
        return partitions, nodes
    summary = run(["sinfo", "-h", "-a", "-e", "-o", SINFO], timeout_s=COMMAND_S)
    if summary.returncode != 0 and _is_silent(summary):
        raise _unreachable(summary)
    listed, summed = from_sinfo(summary.stdout)
    for kind, rows in (("partition", partitions), ("node", nodes)):
        if not rows:
            notes.append(f"scontrol show {kind} failed ({_first_error_line(answers[kind])})")
    if not partitions and not listed:
        raise LeadlineError(
            f"Slurm hides its partitions from you ({_first_error_line(answers['partition'])}): ask the site about "
            "PrivateData, or describe the system by hand"
        )
    return partitions or listed, nodes or summed


def _accounting(
    run: ProcessRunner, notes: list[str], label: str, words: Sequence[str], fields: Sequence[str]
) -> list[Record] | None:
    """Return rows of the accounting; ``None``, with a note, if it does not answer."""
    try:
        answer = run(["sacctmgr", "-n", "-P", *words, f"format={','.join(fields)}"], timeout_s=COMMAND_S)
    except InvalidInput:
        notes.append(f"{label} unknown: sacctmgr is not installed")
        return None
    if answer.returncode != 0 or answer.timed_out:
        notes.append(f"{label} unknown: sacctmgr failed ({_first_error_line(answer)})")
        return None
    return read_rows(answer.stdout, fields)


def _unreachable(answer: CompletedProcess) -> SchedulerUnreachable:
    return SchedulerUnreachable(
        f"Slurm does not answer ({_first_error_line(answer)}): check that its controller runs, then try again"
    )


def _is_silent(answer: CompletedProcess) -> bool:
    return answer.timed_out or any(part in (answer.stdout + answer.stderr).lower() for part in _SILENT)


def _first_error_line(answer: CompletedProcess) -> str:
    """Return the first line of a command's error message, without its prefix."""
    if answer.timed_out:
        return f"no answer within {COMMAND_S:.0f} s"
    lines = [line.strip() for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    if not lines:
        return f"exit code {answer.returncode}, no message"
    return lines[0].partition("error: ")[2] or lines[0]


KEPT = ".bak"
"""End of the name of the file before the last probe."""
MARK = "Written by leadline systems probe"
_DIGEST = re.compile(r"^# digest: ([0-9a-f]{64})$", re.MULTILINE)


class SystemProbe(Frozen):
    """Result of a probe.

    Attributes:
        system: the system as the catalog now has it.
        file: path of the catalog file.
        text: content of that file.
        change: differences from the file before.
        here: this machine.
        notes: missing answers and conflicts.
        kept: where the previous file is kept.
    """

    system: System
    file: str
    text: str
    change: SystemChange
    here: Machine
    notes: tuple[str, ...] = ()
    kept: str | None = None


def probe_system(
    name: str | None, *, run: ProcessRunner, catalog: Catalog, folder: Path, today: date, save: bool = True
) -> SystemProbe:
    """Read the Slurm of this machine into ``folder``, the user's catalog, as ``name`` (default: the cluster's name).

    The user's additions to that system are laid over it. A file that no probe wrote is never overwritten. The previous
    file of a probe is kept next to the new one.

    Raises:
        SchedulerUnreachable: there is no Slurm on this machine, or it does not answer.
        InvalidInput: the user described that system by hand, or the additions do not fit.
        LeadlineError: the folder is not writable, or Slurm hides its partitions.
    """
    if save:
        require_writable(folder / SITES)
    machine = describe_machine(run, catalog)
    records, failures = query_slurm(run, user=getpass.getuser(), groups=_own_groups(), machine=machine)
    system_name, site = _catalog_name(name or records.config.get("ClusterName") or "slurm", catalog)
    file = folder / SITES / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', system_name).strip('-.') or 'slurm'}.toml"
    _refuse_own(folder / SITES, file, system_name)
    probed = read_slurm(records, catalog.devices(), name=system_name, site=site, as_of=today.isoformat())
    text = _file_text(probed.system, file, today)
    additions = folder / ADDITIONS / file.name
    system = _read_back(text, file, additions, system_name)
    before, notes, kept = _previous_system(file, text, system_name)
    if site != system_name and not file.exists():
        notes.append(
            f"{system_name} replaces the shipped entry of {site}: its prices, rules and processors are not "
            f"copied; add those you need to {additions}"
        )
    notes += [*failures, *probed.notes, *_unknown_additions(text, additions)]
    if save:
        with refuse_unwritable(file.parent):
            if kept is not None:
                kept.write_bytes(file.read_bytes())
            write_atomically(file, text)
    return SystemProbe(
        system, str(file), text, compare_systems(before, probed.system), machine, tuple(dict.fromkeys(notes)),
        str(kept) if kept and save else None,
    )  # fmt: skip


def last_change(name: str, folder: Path) -> SystemChange | None:
    """Return what the last probe of a system changed in ``folder``, the user's catalog; None if no probe changed it."""
    for file in sorted((folder / SITES).glob("*.toml")):
        kept = file.with_name(f"{file.name}{KEPT}")
        if not kept.exists() or name.casefold() not in _described_systems(_read(file), ""):
            continue
        before, after = (_described(path, name) for path in (kept, file))
        return compare_systems(before, after) if before and after else None
    return None


def _described(path: Path, name: str) -> System | None:
    """Return the system of that name in a file; None if the file has none or is damaged."""
    try:
        return next((one for one in read_site(_read(path), str(path)) if one.name.casefold() == name.casefold()), None)
    except InvalidInput:
        return None


def _catalog_name(name: str, catalog: Catalog) -> tuple[str, str]:
    """Return the name and the site of a system in the catalog's spelling.

    A catalog that cannot be read counts as empty: its broken file may be the one that this probe rewrites.
    """
    try:
        system = next((system for system in catalog.systems() if system.name.casefold() == name.casefold()), None)
    except InvalidInput:
        system = None
    return (system.name, system.site) if system else (name, name)


def _own_groups() -> frozenset[str]:
    """Return the names of this process's groups."""
    names = {group.gr_gid: group.gr_name for group in grp.getgrall()}
    return frozenset(names[group_id] for group_id in {*os.getgroups(), os.getegid()} if group_id in names)


def _refuse_own(sites: Path, file: Path, name: str) -> None:
    """Raise if the user, or a probe of another system, already describes this one."""
    for path in sorted(sites.glob("*.toml")):
        text = _read(path)
        if path == file and MARK in text:
            if name.casefold() not in _described_systems(text, name):
                raise InvalidInput(f"{path} holds another probed system: choose another name than {name}")
            continue
        if path == file or any(system.name.casefold() == name.casefold() for system in read_site(text, str(path))):
            raise InvalidInput(
                f"{path} describes {name} by hand and is not overwritten: move your entries to "
                f"{sites.parent / ADDITIONS / file.name}, or probe under another name"
            )


def _described_systems(text: str, name: str) -> set[str]:
    """Return the case-folded system names of a probed file; only ``name`` if the file is unreadable."""
    try:
        return {system.name.casefold() for system in read_site(text, name)}
    except InvalidInput:
        return {name.casefold()}


def _file_text(system: System, file: Path, today: date) -> str:
    # The digest shows the next probe whether the user has edited the file.
    body = format_site([system], site=system.site, name=system.name)
    heading = [
        f"{MARK} on {today.isoformat()}; the next probe rewrites it and keeps this as {file.name}.bak.",
        f"Put your own entries in ../{ADDITIONS}/{file.name}: they override this file, key by key.",
        f"digest: {_digest(body)}",
    ]
    return "\n".join(f"# {line}" for line in heading) + "\n" + body


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _read_back(text: str, file: Path, additions: Path, name: str) -> System:
    """Return the system as the catalog will read it, so that no unreadable file is written."""
    additions_text = (_read(additions), str(additions)) if additions.exists() else None
    return next(system for system in read_site(text, str(file), additions=additions_text) if system.name == name)


def _previous_system(file: Path, text: str, name: str) -> tuple[System | None, list[str], Path | None]:
    """Return the system in the previous file, notes about it, and the path to keep it at."""
    if not file.exists():
        return None, [], None
    old = _read(file)
    marked = _DIGEST.search(old)
    edited = marked is None or marked[1] != _digest(old[marked.end() + 1 :])
    kept = file.with_name(f"{file.name}{KEPT}")
    notes = []
    if edited:
        number = next(n for n in range(1, 10_000) if not file.with_name(f"{file.name}.edited-{n}").exists())
        kept = file.with_name(f"{file.name}.edited-{number}")
        notes.append(
            f"{file.name} was edited by hand: kept as {kept.name}; move your entries to {ADDITIONS}/{file.name}"
        )
    try:
        system = next(
            (candidate for candidate in read_site(old, str(file)) if candidate.name.casefold() == name.casefold()), None
        )
    except InvalidInput as error:
        return None, [*notes, f"changes unknown: {error}"], kept
    return system, notes, kept if edited or old != text else None


def _unknown_additions(text: str, additions: Path) -> Iterable[str]:
    """Return a note for each partition and node type of the additions that the cluster does not have."""
    if not additions.exists():
        return
    probed, added = parse_toml(text, label="the probe"), parse_toml(_read(additions), label=str(additions))
    for system in added.get("systems", ()):
        cluster = next((candidate for candidate in probed["systems"] if candidate["name"] == system.get("name")), None)
        if cluster is None:
            continue
        partitions, present = system.get("partitions", ()), {row["name"] for row in cluster["partitions"]}
        used_nodes = {row.get("node") for row in partitions} | cluster["nodes"].keys()
        missing = [row["name"] for row in partitions if row["name"] not in present and "node" not in row]
        missing += [name for name in system.get("nodes", {}) if name not in used_nodes]
        yield from (f"additions/{additions.name} names {name}, which the cluster does not have" for name in missing)


def _read(path: Path) -> str:
    return read_input_text(path, most=MOST_TOML_BYTES, fix=", or move it away")


def check_catalog(catalog: Catalog, file: Path | None = None) -> list[Finding]:
    """Return the problems of the whole catalog, or of one file of devices or of a site, or a device's JSON record.

    A site's file may name any device of the catalog. Entries with faults in their writing are not checked further.

    Raises:
        InvalidInput: the file is not TOML, or cannot be read.
    """
    day = date.today()  # noqa: DTZ011 - prices age in years
    if file is None:
        return validate_catalog(catalog.devices(), catalog.systems(), day)
    text = read_input_text(file, most=MOST_TOML_BYTES)
    try:
        if file.suffix == ".json":
            return validate_catalog([read_record(text, str(file))], [], day)
        is_devices = "devices" in parse_toml(text, label=str(file))
        entries = (read_devices(text, str(file)), []) if is_devices else ([], read_site(text, str(file)))
        faults = []
    except InvalidFile as error:
        entries = ([], []) if file.suffix == ".json" else read_valid_entries(text, str(file))
        faults = [Finding(str(file), each.problem, each.fix or "correct it", line=each.line) for each in error.faults]
    devices, systems = entries
    if systems:
        own = {device.name for device in devices}
        findings = validate_catalog([*devices, *catalog.devices()], systems, day)
        shipped = {device.name for device in catalog.devices()} - own
        return [*faults, *(finding for finding in findings if finding.entry not in shipped)]
    return [*faults, *validate_catalog(devices, [], day)]
