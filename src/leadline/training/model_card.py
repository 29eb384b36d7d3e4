"""The card of a model: the data, the splits, every candidate's errors, the coverage, and how to make it again."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from leadline.core.trained_model import Feature
from leadline.core.units import format_bytes, format_duration

MODEL_SCHEMA = "leadline.model/1"


@dataclass(frozen=True, slots=True)
class ErrorMetrics:
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
    """A candidate's errors on the validation runs, as in ``ErrorMetrics``; ``why_not`` where it could not be fitted."""

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
    tested: dict[str, ErrorMetrics]
    validated: dict[str, ErrorMetrics]
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Return how many runs it was learned from."""
        return sum(one.runs for one in self.scales.values())

    @property
    def errors(self) -> Mapping[str, ErrorMetrics]:
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
class ModelCard:
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
    schema: str = MODEL_SCHEMA
    units: dict[str, str] = field(default_factory=dict)
    refits: tuple[Refit, ...] = ()

    def known_until(self, target: str) -> str:
        """Return when the last run began that what is said of a target rests on; empty where that is not known."""
        return max((self.last_run, *(one.until for one in self.refits if one.target == target)))

    def of(self, target: str) -> TargetCard | None:
        """Return the card of a target, or ``None`` where the model does not predict it."""
        return next((one for one in self.targets if one.target == target), None)


SCALES = {"SD": "scaled-down", "FS": "full-scale"}


def model_card_markdown(card: ModelCard) -> str:
    """Return the card of a model: the data, what was chosen and why, how far off it is, and how to make it again."""
    parts = [f"# Model of {card.application}", _origin(card)]
    for one in card.targets:
        parts += [f"## {one.target}", *_target(one)]
    if card.refits:
        parts += ["## What was learned since", "\n".join(f"- {describe_refit(one)}" for one in card.refits)]
    parts += ["## What it has seen", _features(card.features)]
    parts += ["## Make it again", f"```text\n{card.reproduce}\n```", _versions(card)]
    return "\n\n".join(parts) + "\n"


def format_metric(target: str, value: float) -> str:
    """Write a figure of a target with its unit."""
    if target.endswith("_bytes"):
        return format_bytes(value)
    return format_duration(value) if target.endswith("_s") and value > 0 else f"{value:.3g}"


def describe_training_data(one: TargetCard) -> str:
    """Return what a target was learned from, as a sentence."""
    runs = " and ".join(
        f"{part.runs} {SCALES.get(scale, scale)} runs of {part.configurations} configurations "
        f"({format_duration(part.cost_s)})"
        for scale, part in one.scales.items()
    )
    said = f"Learned from {runs}"
    if one.censored:
        said += f", of which {one.censored} were cut off and are lower bounds"
    left_out = [f"{count} {state}" for state, count in one.failures.items()]
    left_out += [f"{one.unmeasured} without the figure"] if one.unmeasured else []
    return said + (f"; left out: {', '.join(left_out)}." if left_out else ".")


def describe_errors(one: TargetCard) -> list[str]:
    """Return a sentence for each scale: the errors on the test, or out of fold where there was none."""
    found = []
    for scale, errors in one.errors.items():
        which = "test runs" if scale in one.tested else "runs out of fold"
        found.append(
            f"{errors.runs} {SCALES.get(scale, scale)} {which}: off by {errors.mape:.1f} % in the mean, "
            f"{errors.upp:.0f} % under-predicted; {errors.coverage:.0f} % lay within the {100 * one.level:.0f} % "
            f"interval, whose upper end is {errors.over_request:.2f} times what was used (median)."
        )
    return found


def describe_refit(one: Refit) -> str:
    """Return when and why a target's estimator was replaced, and how far off both were, as a sentence."""
    chance = "less than 0.001" if one.p_value < 0.001 else f"{one.p_value:.2g}"
    kept = f" The older one is kept in `{one.older}`." if one.older else ""
    return (
        f"{one.at[:16].replace('T', ' ')}: {one.target}, {one.how} ({one.estimator_before} before, "
        f"{one.estimator_after} now), because {one.why}. On {one.judged} later runs that neither had seen it is off by "
        f"{_percent(100 * one.after)} in the mean, the older one by {_percent(100 * one.before)} (of logarithms; by "
        f"chance with probability {chance}).{kept}"
    )


def candidate_rows(one: TargetCard) -> list[tuple[str, ...]]:
    """Return a row for each candidate, best first, under the heads ``candidate_columns``."""
    return [
        (
            candidate.name,
            "" if candidate.mape is None else _percent(candidate.mape),
            "" if candidate.mae is None else format_metric(one.target, candidate.mae),
            "" if candidate.upp is None else _percent(candidate.upp, digits=0),
            "" if candidate.ov_mape is None else _percent(candidate.ov_mape),
            _policy_figure(one, candidate.policy) if candidate.policy else "",
            candidate.why_not,
        )
        for candidate in one.candidates
    ]


def candidate_columns(one: TargetCard) -> tuple[str, ...]:
    """Return the heads of the table of candidates."""
    return ("candidate", "mean error", "MAE", "too short", "too long by", one.policy, "")


def _policy_figure(one: TargetCard, policy: Sequence[float]) -> str:
    if one.policy == "pinball":
        return format_metric(one.target, policy[0])
    return _percent(100 * policy[0]) if one.policy == "cost" else ""


def _percent(value: float, digits: int = 1) -> str:
    return f"{value:.{digits if value < 1000 else 0}f} %" if math.isfinite(value) and value < 1e6 else "> 1e6 %"


def _origin(card: ModelCard) -> str:
    when = f", made {card.first_run[:10]} to {card.last_run[:10]}" if card.first_run else ""
    command = f"\n\nThe command: `{' '.join(card.command)}`" if card.command else ""
    return (
        f"{card.runs} runs from {card.source}{when}. Trained {card.trained_at[:16].replace('T', ' ')} by Leadline "
        f"{card.leadline}, seed {card.seed}.{command}"
    )


def _target(one: TargetCard) -> Iterable[str]:
    factor = f" (every prediction times {one.factor:g})" if one.factor != 1 else ""
    carries = ", ".join(one.scale_features) or "nothing that is known"
    yield f"**{one.estimator}**{factor}, chosen by `{one.policy}`: {one.reason}."
    yield f"{describe_training_data(one)} Scale is carried by {carries}."
    yield _errors("Test, touched once", one.tested, one) if one.tested else "No runs were held out for a test."
    yield _errors("Out of fold", one.validated, one)
    if one.notes:
        yield "\n".join(f"- {note}" for note in one.notes)
    yield f"Candidates on {one.judged_on}:"
    yield _table(candidate_columns(one), candidate_rows(one))


def _errors(title: str, found: dict[str, ErrorMetrics], one: TargetCard) -> str:
    heads = [title, "runs", "configurations", "mean error", "MAE", "under-predicted", "over-prediction",
             f"within {100 * one.level:.0f} %", "upper end ÷ used"]  # fmt: skip
    rows = [
        (
            SCALES.get(scale, scale),
            str(each.runs),
            str(each.configurations),
            _percent(each.mape),
            format_metric(one.target, each.mae),
            _percent(each.upp, digits=0),
            _percent(each.ov_mape),
            _percent(each.coverage, digits=0),
            f"{each.over_request:.2f}",
        )
        for scale, each in found.items()
    ]
    return _table(heads, rows)


def _features(features: Sequence[Feature]) -> str:
    rows = [(one.name, one.role.value, _seen(one), one.unit) for one in features]
    return _table(["feature", "kind", "seen", "unit"], rows)


def _seen(one: Feature) -> str:
    if one.categorical:
        return ", ".join(str(choice) for choice in one.choices)
    if one.values:
        return ", ".join(f"{value:g}" for value in one.values)
    return f"{one.low:g} to {one.high:g}"


def _versions(card: ModelCard) -> str:
    return "With " + ", ".join(f"{name} {number}" for name, number in card.versions.items()) + "."


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
