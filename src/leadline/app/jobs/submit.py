"""The verb ``submit`` to the plane: what is handed over, where it may go, and what the plane may do for it."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from leadline.app.estimate.estimate import DEFAULT_RISK, Toolbox
from leadline.app.jobs.job_request import (
    ANY_SLURM,
    InferredRequest,
    JobRequest,
    build_job_spec,
    find_partition,
    find_system,
    infer_request,
    predict_job,
    render_batch_script,
)
from leadline.app.jobs.journal import JobSubmission, parse_array_indices, plane_dir
from leadline.app.jobs.schedulers import build_scheduler
from leadline.app.machines.remotes import find_remote, read_remotes
from leadline.app.machines.targets import LOCAL
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import DependencyKind, Place, Policy
from leadline.core.ports import Catalog
from leadline.core.units import HOUR_S, parse_duration_s
from leadline.execution.plane.stager import check_folder_name


@dataclass(frozen=True, slots=True)
class PlaneOptions:
    """What the user lets the plane do; see ``Policy``, of which ``None`` leaves the usual.

    ``deadline`` is how long from now, or a moment in ISO 8601; ``array`` names elements as Slurm does. Of ``after``
    the job is to have completed, of ``after_any`` only to have ended.
    """

    copies: int = 1
    array: str | None = None
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    attempts: int | None = None
    cost: float | None = None
    node_hours: float | None = None
    resumes: bool = False
    checkpoint_signal: str | None = None
    checkpoint_before: str | None = None
    deadline: str | None = None
    risk: float = DEFAULT_RISK
    resizes: bool = True
    measured: bool = True
    checkpoint_folder: str | None = None

    @property
    def needs_plane(self) -> bool:
        """Whether anything was asked that only the plane can do."""
        return self != PlaneOptions(risk=self.risk) or self.risk != DEFAULT_RISK


@dataclass(frozen=True, slots=True)
class PreparedSubmission:
    """What is to be handed over, a sentence for each thing that was filled in, and the script of each place."""

    submission: JobSubmission
    notes: tuple[str, ...] = ()
    scripts: tuple[tuple[Place, JobSpec, str], ...] = ()


def prepare_submission(
    subject: Sequence[str], on: Sequence[str], request: JobRequest, terms: PlaneOptions, tools: Toolbox
) -> PreparedSubmission:
    """Return what is to be handed over, with what the request left open filled in for the first place.

    Raises:
        UnknownName: no such system or partition.
        InvalidInput: there is no command, a site would refuse the job, or the terms cannot be.
    """
    places = parse_places(on, tools.catalog)
    policy = build_policy(places, terms)
    indices = parse_array_indices(terms.array) if terms.array is not None else ()
    if terms.after and terms.after_any:
        raise InvalidInput("a job waits for others to complete (--after) or to end (--after-any): name them with one")
    filled = _filled(subject, places[0], request, tools)
    request = filled.request
    clusters = [one for one in places if one.system != LOCAL]
    scripts = tuple(made for one in clusters for made in _script(subject, one, request, tools.catalog))
    request = replace(request, workdir=request.workdir or _workdir(places))
    spec = replace(build_job_spec(subject, str(places[0]), request), watched=policy.measured)
    kind = DependencyKind.ANY if terms.after_any else DependencyKind.OK
    wanted = JobSubmission(
        spec, policy, indices, terms.after_any or terms.after, kind, filled.predicted, tags=filled.tags
    )
    return PreparedSubmission(wanted, filled.notes, scripts)


def parse_places(on: Sequence[str], catalog: Catalog) -> tuple[Place, ...]:
    """Return the places by the names that the catalog gives their systems, each once.

    Raises:
        UnknownName: no such system or partition.
        InvalidInput: one is named twice, or without the partition that it needs.
    """
    found: list[Place] = []
    for name in on:
        system, _, partition = name.partition(":")
        folded = system.casefold()
        own = next((one for one in read_remotes() if one.casefold() == folded), None)
        known = folded if folded in (LOCAL, ANY_SLURM) else own or find_system(system, catalog).name
        if folded == LOCAL and partition:
            raise InvalidInput(f"{name}: this machine has no partitions: write --on local")
        place = Place(known, partition or None)
        if known not in (LOCAL, ANY_SLURM) and _has_rules(place, catalog):
            find_partition(JobSpec("", (), ResourceSpec(), system=known, partition=place.partition), catalog)
        if place in found:
            raise InvalidInput(f"--on {place} stands there twice: name each place once")
        found.append(place)
    return tuple(found)


def check_reachable(places: Sequence[Place], catalog: Catalog) -> None:
    """Refuse places that the plane could not reach from here; nothing is asked there.

    Raises:
        InvalidInput: what is missing in the user's own file, or that its scheduler is none that Leadline speaks to.
        SchedulerUnreachable: its commands are not on this machine.
    """
    for place in places:
        if place.system != LOCAL:
            build_scheduler(place.system, catalog, plane_dir())


def build_policy(places: tuple[Place, ...], terms: PlaneOptions) -> Policy:
    """Return what the plane may do for the job.

    Raises:
        InvalidInput: a term cannot be.
    """
    usual = Policy(places)
    for option, value, least in (
        ("--copies", terms.copies, 1), ("--attempts", terms.attempts, 1), ("--most-cost", terms.cost, 0),
        ("--most-node-hours", terms.node_hours, 0),
    ):  # fmt: skip
        if value is not None and not value >= least:
            raise InvalidInput(f"{option} is {value:g}, but it must be at least {least}")
    if terms.copies > len(places):
        raise InvalidInput(
            f"--copies {terms.copies} wait each at another place, and there "
            f"{'is one' if len(places) == 1 else f'are {len(places)}'}: name as many places with --on"
        )
    if terms.copies > 1 and not terms.measured:
        raise InvalidInput(
            f"--copies {terms.copies} needs the measuring wrapper, which lets one copy begin: leave --no-measure out"
        )
    if terms.checkpoint_folder is not None and not terms.resumes:
        raise InvalidInput("--checkpoint-folder is for a command that goes on from its own checkpoint: add --resumes")
    if not 0 < terms.risk < 1:
        raise InvalidInput(f"--risk is {terms.risk:g}, but it must lie between 0 and 1, such as 0.05")
    before_s = parse_duration_s(terms.checkpoint_before) if terms.checkpoint_before else usual.checkpoint_s
    return replace(
        usual,
        copies=terms.copies,
        attempts=usual.attempts if terms.attempts is None else terms.attempts,
        node_s=None if terms.node_hours is None else terms.node_hours * HOUR_S,
        cost=terms.cost,
        resumes=terms.resumes,
        checkpoint_signal=_signal(terms.checkpoint_signal),
        checkpoint_s=before_s,
        deadline_at=_deadline(terms.deadline),
        risk=terms.risk,
        resizes=terms.resizes,
        measured=terms.measured,
        checkpoint_folder=check_folder_name(terms.checkpoint_folder) if terms.checkpoint_folder is not None else None,
    )


def _filled(subject: Sequence[str], place: Place, request: JobRequest, tools: Toolbox) -> InferredRequest:
    """Return the request with what it left open, what is to be told of that, and what is predicted at the place."""
    if place.system != LOCAL and not _has_rules(place, tools.catalog):
        return InferredRequest(request)
    if place.system != LOCAL:
        filled = infer_request(request, subject, str(place), tools)
        if filled.predicted is not None or filled.request != request:
            return filled
    found = predict_job(str(place), subject, tools, gpus=request.gpus, name=request.name)
    notes = () if found.estimate else (f"nothing is predicted for this job: {found.reason}",)
    return InferredRequest(request, notes, found.estimate, found.tags)


def _script(
    subject: Sequence[str], place: Place, request: JobRequest, catalog: Catalog
) -> tuple[tuple[Place, JobSpec, str], ...]:
    """Return the script of a place that reads scripts of Slurm's; one whose rules are not known takes a plain one."""
    spec = build_job_spec(subject, str(place), request)
    if place.system == ANY_SLURM or _has_rules(place, catalog):
        return ((place, spec, render_batch_script(spec, catalog)),)
    reach = find_remote(place.system)
    if (reach.scheduler or "").casefold() == ANY_SLURM:
        return ((place, spec, render_batch_script(replace(spec, system=ANY_SLURM), catalog)),)
    if place.partition is not None and reach.scheduler is None:
        find_system(place.system, catalog).partition(place.partition)
    return ()


def _has_rules(place: Place, catalog: Catalog) -> bool:
    """Whether the catalog knows the system as one with Slurm, and the user's own file does not say otherwise."""
    try:
        known = catalog.system(place.system).scheduler.casefold()
    except UnknownName:
        return False
    return (find_remote(place.system).scheduler or known).casefold() == ANY_SLURM


def _workdir(places: Sequence[Place]) -> str | None:
    """Return the folder at hand where a place is reached from here: whoever runs the plane may be in another."""
    return str(Path.cwd()) if any(find_remote(one.system).host is None for one in places) else None


def _signal(name: str | None) -> str | None:
    if name is None:
        return None
    known = {one.name.removeprefix("SIG") for one in signal.Signals}
    short = name.upper().removeprefix("SIG")
    if short not in known or short in ("KILL", "STOP"):
        raise InvalidInput(f"--checkpoint-signal {name!r} is no signal that a command can hear: write USR1 or TERM")
    return short


def _deadline(text: str | None) -> str | None:
    """Return a deadline as a moment; one that is a duration counts from now."""
    if text is None:
        return None
    now = datetime.now(UTC)
    if re.match(r"\d{4}-\d{2}-\d{2}", text):
        try:
            moment = datetime.fromisoformat(text).astimezone(UTC)
        except ValueError as error:
            raise InvalidInput(f"--deadline {text!r} is no moment: write 2026-11-23T08:00, or 6h from now") from error
    else:
        try:
            moment = datetime.fromtimestamp(now.timestamp() + parse_duration_s(text), UTC)
        except (LeadlineError, OverflowError, OSError, ValueError) as error:
            raise InvalidInput(
                f"--deadline {text!r} is neither a duration nor a moment: write 6h, or 2026-11-23T08:00"
            ) from error
    if moment <= now:
        raise InvalidInput(f"--deadline {text!r} is past: name a moment that is to come")
    return moment.isoformat(timespec="milliseconds")
