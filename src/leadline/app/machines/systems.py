"""Ask a live Slurm for its configuration, partitions, nodes and limits; what it refuses is said and not guessed."""

import getpass
import grp
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from leadline.app.machines.this_machine import describe_machine
from leadline.app.settings import require_writable, unwritable
from leadline.catalog.compare import compare_systems
from leadline.catalog.read import ADDITIONS, SITES
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
from leadline.catalog.toml_files import read_devices, read_site
from leadline.catalog.validate import Finding, validate_catalog
from leadline.catalog.write import format_site
from leadline.core.documents import explain_read_error, parse_toml
from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.hardware import Machine
from leadline.core.ports import Catalog
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.systems import System, SystemChange

COMMAND_S = 60.0
"""How long a command may take; with the controller down scontrol gives up after some ten seconds by itself."""
_SILENT = (
    "unable to contact",
    "connection refused",
    "connect failure",
    "timed out",
    "configuration source",
    "resolve_ctls",
)
"""Parts of what Slurm's commands say where the controller, rather than a right, is missing."""


@dataclass(frozen=True, slots=True)
class SlurmAnswers:
    """What Slurm said, and a sentence for each thing that it did not say."""

    said: ClusterRecords
    notes: tuple[str, ...] = ()


def query_slurm(run: ProcessRunner, *, user: str, groups: frozenset[str], here: Machine | None = None) -> SlurmAnswers:
    """Return what the cluster at hand says to ``user``; what only operators may know is left out.

    Raises:
        SchedulerUnreachable: there is no Slurm here, or its controller does not answer.
        LeadlineError: it shows its partitions to nobody but its operators.
    """
    config = _config(run)
    notes: list[str] = []
    partitions, nodes = _partitions_and_nodes(run, notes)
    qos = associations = None
    if config.get("AccountingStorageType", "").endswith("none"):
        notes.append("the cluster keeps no accounting, so that there are no limits of QOS or accounts")
    else:
        qos = _accounting(run, notes, "QOS", ["show", "qos"], QOS)
        cluster = [f"cluster={config['ClusterName']}"] if "ClusterName" in config else []
        associations = _accounting(
            run, notes, "your accounts", ["show", "assoc", "where", f"user={user}", *cluster], ASSOCIATION
        )
        if associations:
            accounts = ["show", "assoc", "where", "user=", *cluster]
            shared = _accounting(run, notes, "what your accounts share", accounts, ASSOCIATION) or []
            associations = [*associations, *(row for row in shared if not row["User"])]
    return SlurmAnswers(ClusterRecords(config, partitions, nodes, qos, associations, groups, here), tuple(notes))


def _config(run: ProcessRunner) -> Record:
    try:
        answer = run(["scontrol", "show", "config"], timeout_s=COMMAND_S)
    except InvalidInput as error:
        raise SchedulerUnreachable(
            "there is no Slurm here, for scontrol cannot be started: probe from a login node of the cluster"
        ) from error
    if answer.returncode != 0 or answer.timed_out:
        raise _unreachable(answer)
    return read_slurm_config(answer.stdout)


def _partitions_and_nodes(run: ProcessRunner, notes: list[str]) -> tuple[Sequence[Record], Sequence[Record]]:
    """Return both by scontrol, or what sinfo tells in place of what scontrol may not."""
    asked = {what: run(["scontrol", "-a", "-o", "show", what], timeout_s=COMMAND_S) for what in ("partition", "node")}
    for answer in asked.values():
        if answer.returncode != 0 and _is_silent(answer):
            raise _unreachable(answer)
    partitions = read_partitions(asked["partition"].stdout)
    nodes = read_nodes(asked["node"].stdout)
    if partitions and nodes:
        return partitions, nodes
    summary = run(["sinfo", "-h", "-a", "-e", "-o", SINFO], timeout_s=COMMAND_S)
    if summary.returncode != 0 and _is_silent(summary):
        raise _unreachable(summary)
    listed, summed = from_sinfo(summary.stdout)
    for what, there in (("partition", partitions), ("node", nodes)):
        if not there:
            notes.append(f"scontrol show {what} is refused ({_why(asked[what])})")
    if not partitions and not listed:
        raise LeadlineError(
            f"Slurm shows you none of its partitions ({_why(asked['partition'])}): ask the site for what it hides "
            "(PrivateData), and describe it by hand"
        )
    return partitions or listed, nodes or summed


def _accounting(
    run: ProcessRunner, notes: list[str], what: str, words: Sequence[str], fields: Sequence[str]
) -> list[Record] | None:
    """Return the rows of a question to the accounting; ``None``, and a note, where it does not answer."""
    try:
        answer = run(["sacctmgr", "-n", "-P", *words, f"format={','.join(fields)}"], timeout_s=COMMAND_S)
    except InvalidInput:
        notes.append(f"{what} cannot be asked for: sacctmgr is not installed here")
        return None
    if answer.returncode != 0 or answer.timed_out:
        notes.append(f"{what} cannot be asked for: sacctmgr says {_why(answer)!r}")
        return None
    return read_rows(answer.stdout, fields)


def _unreachable(answer: CompletedProcess) -> SchedulerUnreachable:
    return SchedulerUnreachable(f"Slurm does not answer ({_why(answer)}): see that its controller runs, and try again")


def _is_silent(answer: CompletedProcess) -> bool:
    return answer.timed_out or any(part in (answer.stdout + answer.stderr).lower() for part in _SILENT)


def _why(answer: CompletedProcess) -> str:
    """Return the first line of what a command complained, without the name before it."""
    if answer.timed_out:
        return f"no answer within {COMMAND_S:.0f} s"
    lines = [line.strip() for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    if not lines:
        return f"exit code {answer.returncode}, and nothing was said"
    return lines[0].partition("error: ")[2] or lines[0]


SCHEMA = "leadline.system_probe/1"
MARK = "Written by leadline systems probe"
_DIGEST = re.compile(r"^# digest: ([0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SystemProbe:
    """What a probe found: the system as the catalog has it now, what changed, and what is not known.

    ``file`` is where it was written as ``text``, ``kept`` where the file lies that stood there, and ``here`` the
    machine that asked.
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
    """Read the Slurm at hand into ``folder``, the user's catalog, as the system ``name``, by default the cluster's own.

    What the user wrote in the file of that name among the additions is laid over it. A file of sites that a probe did
    not write is never written over, and what stood in one that it did is kept beside it.

    Raises:
        SchedulerUnreachable: there is no Slurm here, or it does not answer.
        InvalidInput: the user described that system by hand, or the additions do not fit.
        LeadlineError: the folder cannot be written to, or Slurm shows its partitions to nobody.
    """
    if save:
        require_writable(folder / SITES)
    here = describe_machine(run, catalog)
    heard = query_slurm(run, user=getpass.getuser(), groups=_groups(), here=here)
    called, site = _named(name or heard.said.config.get("ClusterName") or "slurm", catalog)
    file = folder / SITES / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', called).strip('-.') or 'slurm'}.toml"
    _refuse_own(folder / SITES, file, called)
    probed = read_slurm(heard.said, catalog.devices(), name=called, site=site, as_of=today.isoformat())
    text = _text(probed.system, file, today)
    additions = folder / ADDITIONS / file.name
    system = _as_read(text, file, additions, called)
    before, notes, kept = _before(file, text, called)
    if site != called and not file.exists():
        notes.append(
            f"{called} stands before the one of {site} that is known already, whose prices, rules and processors are "
            f"not taken over: lay what you need of them over it in {additions}"
        )
    notes += [*heard.notes, *probed.notes, *_orphans(text, additions)]
    if save:
        _save(file, text, kept)
    return SystemProbe(
        system, str(file), text, compare_systems(before, probed.system), here, tuple(dict.fromkeys(notes)),
        str(kept) if kept and save else None,
    )  # fmt: skip


def _named(name: str, catalog: Catalog) -> tuple[str, str]:
    """Return the name and the site of a system, as the catalog writes them where it has one of that name.

    A catalog that cannot be read has none: the file may be the one that is to be written anew.
    """
    try:
        known = next((one for one in catalog.systems() if one.name.casefold() == name.casefold()), None)
    except InvalidInput:
        known = None
    return (known.name, known.site) if known else (name, name)


def _groups() -> frozenset[str]:
    """Return the names of the groups that this process is in."""
    known = {one.gr_gid: one.gr_name for one in grp.getgrall()}
    return frozenset(known[one] for one in {*os.getgroups(), os.getegid()} if one in known)


def _refuse_own(sites: Path, file: Path, name: str) -> None:
    """Refuse to stand beside, or to write over, what the user wrote of the same system, or another probed one."""
    for path in sorted(sites.glob("*.toml")):
        text = _read(path)
        if path == file and MARK in text:
            if name.casefold() not in _described(text, name):
                raise InvalidInput(f"{path} holds another system that was probed: call this one otherwise than {name}")
            continue
        if path == file or any(one.name.casefold() == name.casefold() for one in read_site(text, str(path))):
            raise InvalidInput(
                f"{path} describes {name} by hand, and a probe writes over nothing of yours: move what is yours to "
                f"{sites.parent / ADDITIONS / file.name}, or probe it under another name"
            )


def _described(text: str, name: str) -> set[str]:
    """Return the names of the systems of a probed file, folded; ``name`` alone where it can no longer be read."""
    try:
        return {one.name.casefold() for one in read_site(text, name)}
    except InvalidInput:
        return {name.casefold()}


def _text(system: System, file: Path, today: date) -> str:
    body = format_site([system], site=system.site, name=system.name)
    heading = [
        f"{MARK} on {today.isoformat()}; the next one writes it anew and keeps this as {file.name}.bak.",
        f"What you know better belongs into ../{ADDITIONS}/{file.name}: it is laid over this file, key by key.",
        f"digest: {_digest(body)}",
    ]
    return "\n".join(f"# {line}" for line in heading) + "\n" + body


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _as_read(text: str, file: Path, additions: Path, name: str) -> System:
    """Return the system as the catalog will read it, so that nothing is written that it could not read."""
    own = (_read(additions), str(additions)) if additions.exists() else None
    return next(one for one in read_site(text, str(file), additions=own) if one.name == name)


def _before(file: Path, text: str, name: str) -> tuple[System | None, list[str], Path | None]:
    """Return the system as the file that stands there says, what is to be said of it, and where it will be kept."""
    if not file.exists():
        return None, [], None
    old = _read(file)
    marked = _DIGEST.search(old)
    edited = marked is None or marked[1] != _digest(old[marked.end() + 1 :])
    kept = file.with_name(f"{file.name}.bak")
    notes = []
    if edited:
        number = next(n for n in range(1, 10_000) if not file.with_name(f"{file.name}.edited-{n}").exists())
        kept = file.with_name(f"{file.name}.edited-{number}")
        notes.append(
            f"{file.name} was edited by hand after it was written: it is kept as {kept.name}, and what is yours in it "
            f"belongs into {ADDITIONS}/{file.name}"
        )
    try:
        system = next((one for one in read_site(old, str(file)) if one.name.casefold() == name.casefold()), None)
    except InvalidInput as error:
        return None, [*notes, f"what changed cannot be told: {error}"], kept
    return system, notes, kept if edited or old != text else None


def _save(file: Path, text: str, kept: Path | None) -> None:
    """Write the file, whole or not at all, after what stood there was moved to ``kept``."""
    draft = file.with_suffix(".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        if kept is not None:
            kept.write_bytes(file.read_bytes())
        draft.replace(file)
    except OSError as error:
        raise unwritable(file.parent, error.strerror) from error


def _orphans(text: str, additions: Path) -> Iterable[str]:
    """Return a sentence for each partition and node type that the additions speak of and the cluster does not have."""
    if not additions.exists():
        return
    there, added = parse_toml(text, label="the probe"), parse_toml(_read(additions), label=str(additions))
    for system in added.get("systems", ()):
        has = next((one for one in there["systems"] if one["name"] == system.get("name")), None)
        if has is None:
            continue
        rows = {row["name"] for row in has["partitions"]}
        lost = [row["name"] for row in system.get("partitions", ()) if row["name"] not in rows and "node" not in row]
        lost += [name for name in system.get("nodes", {}) if name not in has["nodes"] and not _is_used(name, system)]
        yield from (f"{additions.name} among your additions speaks of {name}, which is not there" for name in lost)


def _is_used(node: str, system: dict[str, object]) -> bool:
    rows = system.get("partitions", ())
    return isinstance(rows, list) and any(row.get("node") == node for row in rows)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {explain_read_error(error)}, or move it away") from error


def check_catalog(catalog: Catalog, file: Path | None = None, *, today: date | None = None) -> list[Finding]:
    """Return what is wrong with the whole catalog, or with one file of devices or of a site.

    A site's file may name any device of the catalog.

    Raises:
        InvalidInput: the file cannot be read as either.
    """
    day = today or date.today()  # noqa: DTZ011 - a price's age counts in years
    if file is None:
        return validate_catalog(catalog.devices(), catalog.systems(), day)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {explain_read_error(error)}") from error
    if "devices" in parse_toml(text, label=str(file)):
        return validate_catalog(read_devices(text, str(file)), [], day)
    shipped = {device.name for device in catalog.devices()}
    found = validate_catalog(catalog.devices(), read_site(text, str(file)), day)
    return [finding for finding in found if finding.entry not in shipped]
