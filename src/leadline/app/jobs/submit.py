"""The verb ``submit`` to the plane: the job, its targets, and the policy that the plane follows."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from leadline.app.estimate.estimate import DEFAULT_RISK, Toolbox
from leadline.app.jobs.job_request import (
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
from leadline.app.machines.targets import ANY_SLURM, LOCAL
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import DependencyKind, Place, Policy
from leadline.core.ports import Catalog
from leadline.core.units import HOUR_S, parse_duration_s
from leadline.execution.plane.stager import check_folder_name


@dataclass(frozen=True, slots=True)
class PlaneOptions:
    """The user's options for the plane; ``None`` keeps the default of ``Policy``.

    Attributes:
        array: elements as Slurm writes them.
        after: jobs that must complete first.
        after_any: jobs that must end first.
        deadline: a duration from now, or a time in ISO 8601.
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
        """Return whether any option differs from its default, so that the job needs the plane."""
        return self != PlaneOptions(risk=self.risk) or self.risk != DEFAULT_RISK


@dataclass(frozen=True, slots=True)
class PreparedSubmission:
    """A submission ready to be written to the journal, notes on inferred resources, and the script of each target."""

    submission: JobSubmission
    notes: tuple[str, ...] = ()
    scripts: tuple[tuple[Place, JobSpec, str], ...] = ()


def prepare_submission(
    subject: Sequence[str], on: Sequence[str], request: JobRequest, terms: PlaneOptions, tools: Toolbox
) -> PreparedSubmission:
    """Return the submission, with open resources inferred for the first target.

    Raises:
        UnknownName: unknown system or partition.
        InvalidInput: there is no command, a site would refuse the job, or an option is out of range.
    """
    places = parse_places(on, tools.catalog)
    policy = build_policy(places, terms)
    indices = parse_array_indices(terms.array) if terms.array is not None else ()
    if terms.after and terms.after_any:
        raise InvalidInput("--after and --after-any exclude each other")
    inferred = _infer(subject, places[0], request, tools)
    request = inferred.request
    clusters = [place for place in places if place.system != LOCAL]
    scripts = tuple(script for cluster in clusters for script in _script(subject, cluster, request, tools.catalog))
    # The scripts above keep no working directory: the site's default holds for a script that the user submits.
    request = replace(request, workdir=request.workdir or _workdir(places))
    spec = replace(build_job_spec(subject, str(places[0]), request), watched=policy.measured)
    kind = DependencyKind.ANY if terms.after_any else DependencyKind.OK
    submission = JobSubmission(
        spec, policy, indices, terms.after_any or terms.after, kind, inferred.predicted, tags=inferred.tags
    )
    return PreparedSubmission(submission, inferred.notes, scripts)


def parse_places(on: Sequence[str], catalog: Catalog) -> tuple[Place, ...]:
    """Return the targets with the catalog's names of their systems.

    Raises:
        UnknownName: unknown system or partition.
        InvalidInput: a target is given twice, or lacks its partition.
    """
    places: list[Place] = []
    for name in on:
        system, _, partition = name.partition(":")
        folded = system.casefold()
        remote_name = next((remote for remote in read_remotes() if remote.casefold() == folded), None)
        system_name = folded if folded in (LOCAL, ANY_SLURM) else remote_name or find_system(system, catalog).name
        if folded == LOCAL and partition:
            raise InvalidInput(f"{name}: this machine has no partitions; write --on local")
        place = Place(system_name, partition or None)
        if system_name not in (LOCAL, ANY_SLURM) and _has_rules(place, catalog):
            find_partition(JobSpec("", (), ResourceSpec(), system=system_name, partition=place.partition), catalog)
        if place in places:
            raise InvalidInput(f"--on {place} is given twice")
        places.append(place)
    return tuple(places)


def check_reachable(places: Sequence[Place], catalog: Catalog) -> None:
    """Refuse targets that cannot be reached from this machine, without contacting them.

    Raises:
        InvalidInput: ``reach.toml`` lacks an entry, or Leadline does not support the scheduler.
        SchedulerUnreachable: its commands are not on this machine.
    """
    for place in places:
        if place.system != LOCAL:
            build_scheduler(place.system, catalog, plane_dir())


def build_policy(places: tuple[Place, ...], terms: PlaneOptions) -> Policy:
    """Return the policy that the plane follows for the job.

    Raises:
        InvalidInput: an option is out of range.
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
            f"--copies is {terms.copies}, but there "
            f"{'is one target' if len(places) == 1 else f'are {len(places)} targets'}: each replica "
            "needs its own --on"
        )
    if terms.copies > 1 and not terms.measured:
        raise InvalidInput(
            "--copies needs the measuring wrapper, which starts only one replica: leave --no-measure out"
        )
    if terms.checkpoint_folder is not None and not terms.resumes:
        raise InvalidInput("--checkpoint-folder needs --resumes")
    if not 0 < terms.risk < 1:
        raise InvalidInput(f"--risk is {terms.risk:g}, but it must be between 0 and 1, such as 0.05")
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


def _infer(subject: Sequence[str], place: Place, request: JobRequest, tools: Toolbox) -> InferredRequest:
    """Return the request with open resources inferred, its notes, and the prediction at the target."""
    if place.system != LOCAL and not _has_rules(place, tools.catalog):
        return InferredRequest(request)
    if place.system != LOCAL:
        filled = infer_request(request, subject, str(place), tools)
        if filled.predicted is not None or filled.request != request:
            return filled
    prediction = predict_job(str(place), subject, tools, gpus=request.gpus, name=request.name)
    notes = () if prediction.estimate else (f"no prediction for this job: {prediction.reason}",)
    return InferredRequest(request, notes, prediction.estimate, prediction.tags)


def _script(
    subject: Sequence[str], place: Place, request: JobRequest, catalog: Catalog
) -> tuple[tuple[Place, JobSpec, str], ...]:
    """Return the script of a target that uses Slurm; a plain one if its rules are unknown."""
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
    """Return whether the catalog has the system with Slurm, and ``reach.toml`` does not override that."""
    try:
        scheduler = catalog.system(place.system).scheduler.casefold()
    except UnknownName:
        return False
    return (find_remote(place.system).scheduler or scheduler).casefold() == ANY_SLURM


def _workdir(places: Sequence[Place]) -> str | None:
    """Return the current folder if a target uses this machine's file system: the plane may run in another folder."""
    return str(Path.cwd()) if any(find_remote(place.system).host is None for place in places) else None


def _signal(name: str | None) -> str | None:
    if name is None:
        return None
    names = {signal_number.name.removeprefix("SIG") for signal_number in signal.Signals}
    short = name.upper().removeprefix("SIG")
    if short not in names or short in ("KILL", "STOP"):
        raise InvalidInput(
            f"--checkpoint-signal {name!r} is not a signal that a command can handle: write USR1 or TERM"
        )
    return short


def _deadline(text: str | None) -> str | None:
    """Return a deadline as a moment; a duration counts from now."""
    if text is None:
        return None
    now = datetime.now(UTC)
    if re.match(r"\d{4}-\d{2}-\d{2}", text):
        try:
            moment = datetime.fromisoformat(text).astimezone(UTC)
        except ValueError as error:
            raise InvalidInput(f"--deadline {text!r} is not a time: write 2026-11-23T08:00, or 6h") from error
    else:
        try:
            moment = datetime.fromtimestamp(now.timestamp() + parse_duration_s(text), UTC)
        except (LeadlineError, OverflowError, OSError, ValueError) as error:
            raise InvalidInput(
                f"--deadline {text!r} is not a duration or a time: write 6h, or 2026-11-23T08:00"
            ) from error
    if moment <= now:
        raise InvalidInput(f"--deadline {text!r} is in the past")
    return moment.isoformat(timespec="milliseconds")
