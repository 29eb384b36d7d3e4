"""Ask a live Slurm for its configuration, partitions, nodes and limits; what it refuses is said and not guessed."""

from collections.abc import Sequence
from dataclasses import dataclass

from leadline.catalog.probes.slurm_site import Said
from leadline.catalog.probes.slurm_text import (
    ASSOCIATION,
    QOS,
    SINFO,
    Record,
    from_sinfo,
    read_config,
    read_nodes,
    read_partitions,
    read_rows,
)
from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.hardware import Machine
from leadline.core.ports import Completed, ProcessRunner

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
class Heard:
    """What Slurm said, and a sentence for each thing that it did not say."""

    said: Said
    notes: tuple[str, ...] = ()


def ask_slurm(run: ProcessRunner, *, user: str, groups: frozenset[str], here: Machine | None = None) -> Heard:
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
    return Heard(Said(config, partitions, nodes, qos, associations, groups, here), tuple(notes))


def _config(run: ProcessRunner) -> Record:
    try:
        answer = run(["scontrol", "show", "config"], timeout_s=COMMAND_S)
    except InvalidInput as error:
        raise SchedulerUnreachable(
            "there is no Slurm here, for scontrol cannot be started: probe from a login node of the cluster"
        ) from error
    if answer.returncode != 0 or answer.timed_out:
        raise _unreachable(answer)
    return read_config(answer.stdout)


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


def _unreachable(answer: Completed) -> SchedulerUnreachable:
    return SchedulerUnreachable(f"Slurm does not answer ({_why(answer)}): see that its controller runs, and try again")


def _is_silent(answer: Completed) -> bool:
    return answer.timed_out or any(part in (answer.stdout + answer.stderr).lower() for part in _SILENT)


def _why(answer: Completed) -> str:
    """Return the first line of what a command complained, without the name before it."""
    if answer.timed_out:
        return f"no answer within {COMMAND_S:.0f} s"
    lines = [line.strip() for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    if not lines:
        return f"exit code {answer.returncode}, and nothing was said"
    return lines[0].partition("error: ")[2] or lines[0]
