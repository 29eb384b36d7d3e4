"""The card of a model: the data, the splits, every candidate's errors, the coverage, and how to make it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from leadline.core.models import Feature

SCHEMA = "leadline.model/1"


@dataclass(frozen=True, slots=True)
class Errors:
    """How predictions of ``runs`` runs were off, in percent but for ``mae`` (the target's unit).

    ``upp`` is the share under-predicted, ``ov_mape`` the mean error of the rest (HARP's), ``coverage`` the share within
    the interval, and ``over_request`` the median of the interval's upper end ÷ what was measured.
    """

    runs: int
    configurations: int
    mape: float
    mae: float
    upp: float
    ov_mape: float
    coverage: float
    over_request: float


@dataclass(frozen=True, slots=True)
class CandidateErrors:
    """A candidate's errors on the validation runs, as in ``Errors``; ``why_not`` where it could not be fitted."""

    name: str
    mape: float | None = None
    mae: float | None = None
    upp: float | None = None
    ov_mape: float | None = None
    policy: tuple[float, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class ScaleCard:
    """The runs of one scale: how many configurations and runs, and the seconds they took to make."""

    configurations: int
    runs: int
    cost_s: float


@dataclass(frozen=True, slots=True)
class TargetCard:
    """One target: what it was learned from, what was chosen and why, and how far off it is.

    ``scales`` and ``tested``, ``validated`` have the scales' names as keys. ``within`` maps what carries scale to the
    range of the scaled-down runs: a question beyond it is a full-scale one. ``failures`` counts, by state, runs that
    were no samples.
    """

    target: str
    estimator: str
    factor: float
    policy: str
    reason: str
    judged_on: str
    level: float
    scales: dict[str, ScaleCard]
    censored: int
    unmeasured: int
    failures: dict[str, int]
    scale_features: tuple[str, ...]
    within: dict[str, tuple[float, float]]
    candidates: tuple[CandidateErrors, ...]
    tested: dict[str, Errors]
    validated: dict[str, Errors]
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Return how many runs it was learned from."""
        return sum(one.runs for one in self.scales.values())

    @property
    def errors(self) -> Mapping[str, Errors]:
        """Return the errors to show: on the test runs, and of a scale without any those out of fold."""
        return {**self.validated, **self.tested}


@dataclass(frozen=True, slots=True)
class Refit:
    """When and why what is said of a target was replaced, how, and how far off it was before and after.

    ``before`` and ``after`` are mean absolute errors of logarithms on ``judged`` runs that neither was fitted on,
    ``p_value`` the probability of such a gain by chance. ``until`` is the start of the last run that it knew, and
    ``older`` the file beside the model that holds what it was before.
    """

    target: str
    at: str
    why: str
    how: str
    estimator_before: str
    estimator_after: str
    judged: int
    before: float
    after: float
    p_value: float
    until: str
    older: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """What a model says of itself; kept in its file, and as Markdown beside it."""

    application: str
    runs: int
    first_run: str
    last_run: str
    source: str
    trained_at: str
    leadline: str
    versions: dict[str, str]
    seed: int
    reproduce: str
    features: tuple[Feature, ...]
    targets: tuple[TargetCard, ...]
    command: tuple[str, ...] = ()
    schema: str = SCHEMA
    units: dict[str, str] = field(default_factory=dict)
    refits: tuple[Refit, ...] = ()

    def known_until(self, target: str) -> str:
        """Return when the last run began that what is said of a target rests on; empty where that is not known."""
        return max((self.last_run, *(one.until for one in self.refits if one.target == target)))

    def of(self, target: str) -> TargetCard | None:
        """Return the card of a target, or ``None`` where the model does not predict it."""
        return next((one for one in self.targets if one.target == target), None)
