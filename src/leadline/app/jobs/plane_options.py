"""The user's options for the plane, and the policy that they become."""

import re
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.jobs.journal import MAX_ARRAY_ELEMENTS, check_indices
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.plane import Place, Policy
from leadline.core.units import HOUR_S, duration_s
from leadline.execution.plane.stager import check_folder_name


class PlaneOptions(Frozen):
    """The user's options for the plane; ``None`` keeps the default of ``Policy``.

    Attributes:
        array: elements as Slurm writes them.
        after: jobs that must complete first.
        after_any: jobs that must end first.
        deadline: a duration from now, or a time in ISO 8601.
        may_restart: a prediction may end a running attempt for a larger one, or shorten its limit.
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
    checkpoint_before: str | timedelta | None = None
    deadline: str | timedelta | None = None
    risk: float = DEFAULT_RISK
    resizes: bool = True
    measured: bool = True
    checkpoint_folder: str | None = None
    may_restart: bool = False

    @property
    def needs_plane(self) -> bool:
        """Return whether any option differs from its default, so that the job needs the plane."""
        return self != PlaneOptions(risk=self.risk) or self.risk != DEFAULT_RISK


def build_policy(places: tuple[Place, ...], options: PlaneOptions) -> Policy:
    """Return the policy that the plane follows for a job.

    Raises:
        InvalidInput: an option is out of range.
    """
    for option, value, least in (
        ("--copies", options.copies, 1), ("--attempts", options.attempts, 1), ("--most-cost", options.cost, 0),
        ("--most-node-hours", options.node_hours, 0),
    ):  # fmt: skip
        # "not >=" also refuses a cost that is not a number.
        if value is not None and not value >= least:
            raise InvalidInput(f"{option} is {value:g}, but it must be at least {least}")
    if options.copies > len(places):
        targets = "is one target" if len(places) == 1 else f"are {len(places)} targets"
        raise InvalidInput(f"--copies is {options.copies}, but there {targets}: each replica needs its own --on")
    if options.copies > 1 and not options.measured:
        raise InvalidInput(
            "--copies needs the measuring wrapper, which starts only one replica: leave --no-measure out"
        )
    if options.may_restart and not options.resizes:
        raise InvalidInput("--may-restart and --no-resize exclude each other: leave one out")
    if options.checkpoint_folder is not None and not options.resumes:
        raise InvalidInput("--checkpoint-folder needs --resumes")
    if not 0 < 1 - options.risk < 1:
        raise InvalidInput(f"--risk is {options.risk:g}, but it must be between 0 and 1, such as 0.05")
    policy = Policy(
        places,
        copies=options.copies,
        node_s=None if options.node_hours is None else options.node_hours * HOUR_S,
        cost=options.cost,
        resumes=options.resumes,
        checkpoint_signal=_signal(options.checkpoint_signal),
        checkpoint_folder=None if options.checkpoint_folder is None else check_folder_name(options.checkpoint_folder),
        deadline_at=_deadline(options.deadline),
        risk=options.risk,
        resizes=options.resizes,
        may_restart=options.may_restart,
        links_output=True,
        measured=options.measured,
    )
    if options.attempts is not None:
        policy = replace(policy, attempts=options.attempts)
    if options.checkpoint_before:
        policy = replace(policy, checkpoint_s=duration_s(options.checkpoint_before))
    return policy


def parse_array_indices(text: str) -> tuple[int, ...]:
    """Read the elements of an array as Slurm writes them: ``0-99``, ``1,5,7``, ``0-100:10``.

    Raises:
        InvalidInput: the text has another form.
    """
    indices: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?\s*", part)
        if match is None or (match[3] is not None and int(match[3]) == 0):
            raise InvalidInput(f"{text!r} is not a list of array indices: write 0-99, 1,5,7 or 0-100:10")
        last = int(match[2] or match[1])
        if last - int(match[1]) > MAX_ARRAY_ELEMENTS:
            raise InvalidInput(f"{text!r} has more than {MAX_ARRAY_ELEMENTS} elements: submit smaller arrays")
        indices += range(int(match[1]), last + 1, int(match[3] or 1))
    check_indices(tuple(indices))
    return tuple(indices)


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


def _deadline(text: str | timedelta | None) -> str | None:
    """Return a deadline as a moment; a duration counts from now."""
    if text is None:
        return None
    now = datetime.now(UTC)
    if isinstance(text, str) and re.match(r"\d{4}-\d{2}-\d{2}", text):
        try:
            moment = datetime.fromisoformat(text).astimezone(UTC)
        except ValueError as error:
            raise InvalidInput(f"--deadline {text!r} is not a time: write 2026-11-23T08:00, or 6h") from error
    else:
        try:
            moment = datetime.fromtimestamp(now.timestamp() + duration_s(text), UTC)
        except InvalidInput as error:
            raise InvalidInput(f"--deadline: {error}, or a time such as 2026-11-23T08:00") from error
        except (OverflowError, OSError, ValueError) as error:
            raise InvalidInput(f"--deadline {text!r} is too far away: write 6h, or 2026-11-23T08:00") from error
    if moment <= now:
        raise InvalidInput(f"--deadline {text!r} is in the past")
    return moment.isoformat(timespec="milliseconds")
