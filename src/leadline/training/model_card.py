"""The card of a model, and its Markdown: data, splits, errors of all candidates, coverage and reproduction."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import field

from leadline.core.errors import UnknownName
from leadline.core.frozen import Frozen
from leadline.core.trained_model import Feature
from leadline.core.units import format_bytes, format_duration

MODEL_SCHEMA = "leadline.model/1"


class ErrorMetrics(Frozen):
    """Errors of the predictions of ``runs`` runs, in percent except ``mae`` (in the target's unit).

    ``upp`` is the share of under-predicted runs, and ``ov_mape`` the mean error of the over-predicted ones, as in HARP.
    ``over_request`` is the median of the interval's upper end ÷ measured.
    """

    runs: int
    configurations: int
    mape: float
    mae: float
    upp: float
    ov_mape: float
    coverage: float
    over_request: float


class CandidateErrors(Frozen):
    """A candidate's errors on the validation runs, as in ``ErrorMetrics``; or the reason why it was dropped."""

    name: str
    mape: float | None = None
    mae: float | None = None
    upp: float | None = None
    ov_mape: float | None = None
    policy: tuple[float, ...] = ()
    why_not: str = ""


class ScaleCard(Frozen):
    """Number of configurations and runs of one scale, and the seconds that the runs took."""

    configurations: int
    runs: int
    cost_s: float


class TargetCard(Frozen):
    """Training data, chosen estimator and errors of one target; ``tested`` and ``validated`` are by scale.

    Attributes:
        failures: by state, number of runs that are no samples.
        within: scale feature to its range over the scaled-down runs. A question outside it is a full-scale one.
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
        """Return the number of runs in the training data."""
        return sum(scale.runs for scale in self.scales.values())

    @property
    def errors(self) -> Mapping[str, ErrorMetrics]:
        """Return the errors to show: on the test runs, or out of fold for a scale without test runs."""
        return {**self.validated, **self.tested}


class Refit(Frozen):
    """The replacement of a target's estimator; ``before`` and ``after`` are mean absolute log errors."""

    target: str
    at: str
    why: str
    how: str
    estimator_before: str
    estimator_after: str
    judged: int  # number of later runs that decided; neither estimator was fitted on them
    before: float
    after: float
    p_value: float  # probability of such a gain by chance
    until: str  # start of the last run that the new one was fitted on
    older: str = ""  # file with the older model


class ModelCard(Frozen):
    """The description of a model, kept in the model's file and as a Markdown file."""

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
        """Return the start of the last run that a target was fitted on; empty where it is unknown."""
        return max((self.last_run, *(refit.until for refit in self.refits if refit.target == target)))

    def of(self, target: str) -> TargetCard:
        """Return the card of a target.

        Raises:
            UnknownName: the model was not trained for that target.
        """
        cards = {card.target: card for card in self.targets}
        if target not in cards:
            raise UnknownName("target", target, [*cards], fix=f"this model predicts {', '.join(cards)}")
        return cards[target]


SCALES = {"SD": "scaled-down", "FS": "full-scale"}


def model_card_markdown(card: ModelCard) -> str:
    """Return the card as Markdown."""
    parts = [f"# Model of {card.application}", _origin(card)]
    for target in card.targets:
        parts += [f"## {target.target}", *_target(target)]
    if card.refits:
        parts += ["## Refits", "\n".join(f"- {describe_refit(refit)}" for refit in card.refits)]
    features = [(feature.name, feature.role.value, _range(feature), feature.unit) for feature in card.features]
    parts += ["## Features and their ranges", _table(["feature", "kind", "range", "unit"], features)]
    versions = ", ".join(f"{name} {number}" for name, number in card.versions.items())
    parts += ["## Reproduce", f"```text\n{card.reproduce}\n```", f"With {versions}."]
    return "\n\n".join(parts) + "\n"


def format_metric(target: str, value: float) -> str:
    """Return a value of a target with its unit."""
    if target.endswith("_bytes"):
        return format_bytes(value)
    return format_duration(value) if target.endswith("_s") and value > 0 else f"{value:.3g}"


def describe_training_data(card: TargetCard) -> str:
    """Return a sentence about the training data of a target."""
    runs = " and ".join(
        f"{part.runs} {SCALES.get(scale, scale)} runs of {part.configurations} configurations "
        f"({format_duration(part.cost_s)})"
        for scale, part in card.scales.items()
    )
    sentence = f"Trained on {runs}"
    if card.censored:
        sentence += f", of which {card.censored} were cut off and are lower bounds"
    excluded = [f"{count} {state}" for state, count in card.failures.items()]
    excluded += [f"{card.unmeasured} without a measurement"] if card.unmeasured else []
    return sentence + (f"; left out: {', '.join(excluded)}." if excluded else ".")


def describe_errors(card: TargetCard) -> list[str]:
    """Return a sentence about the errors of each scale, on the test runs or out of fold."""
    sentences = []
    for scale, errors in card.errors.items():
        kind = "test runs" if scale in card.tested else "runs out of fold"
        sentences.append(
            f"{errors.runs} {SCALES.get(scale, scale)} {kind}: mean error {errors.mape:.1f} %, {errors.upp:.0f} % "
            f"under-predicted; {errors.coverage:.0f} % were within the {100 * card.level:.0f} % interval, whose upper "
            f"end is {errors.over_request:.2f} times the measured value (median)."
        )
    return sentences


def describe_refit(refit: Refit) -> str:
    """Return a sentence about a refit: its time and reason, and the errors before and after."""
    chance = "less than 0.001" if refit.p_value < 0.001 else f"{refit.p_value:.2g}"
    older = f" The older one is kept in `{refit.older}`." if refit.older else ""
    return (
        f"{refit.at[:16].replace('T', ' ')}: {refit.target}, {refit.how} ({refit.estimator_before} before, "
        f"{refit.estimator_after} now), because {refit.why}. On {refit.judged} later runs, which neither was fitted "
        f"on, its mean log error is {_percent(100 * refit.after)}, and {_percent(100 * refit.before)} before "
        f"(probability by chance: {chance}).{older}"
    )


def candidate_table(card: TargetCard) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the column names, and a row for each candidate, best first."""

    def metric(value: float | None) -> str:
        return "" if value is None else format_metric(card.target, value)

    scores: dict[str, Callable[[float], str]] = {"pinball": metric, "cost": lambda value: _percent(100 * value)}
    score = scores.get(card.policy)
    rows: list[tuple[str, ...]] = [
        (
            candidate.name,
            _percent(candidate.mape),
            metric(candidate.mae),
            _percent(candidate.upp, digits=0),
            _percent(candidate.ov_mape),
            score(candidate.policy[0]) if score and candidate.policy else "",
            candidate.why_not,
        )
        for candidate in card.candidates
    ]
    return ("candidate", "mean error", "MAE", "too short", "too long by", card.policy, ""), rows


def _percent(value: float | None, digits: int = 1) -> str:
    if value is None:
        return ""
    return f"{value:.{digits if value < 1000 else 0}f} %" if math.isfinite(value) and value < 1e6 else "> 1e6 %"


def _origin(card: ModelCard) -> str:
    when = f", started {card.first_run[:10]} to {card.last_run[:10]}" if card.first_run else ""
    command = f"\n\nThe command: `{' '.join(card.command)}`" if card.command else ""
    return (
        f"{card.runs} runs from {card.source}{when}. Trained {card.trained_at[:16].replace('T', ' ')} by Leadline "
        f"{card.leadline}, seed {card.seed}.{command}"
    )


def _target(card: TargetCard) -> Iterable[str]:
    factor = f" (every prediction times {card.factor:g})" if card.factor != 1 else ""
    yield f"**{card.estimator}**{factor}, chosen by `{card.policy}`: {card.reason}."
    yield f"{describe_training_data(card)} Features that carry scale: {', '.join(card.scale_features) or 'none known'}."
    yield _errors("Test, scored once", card.tested, card) if card.tested else "No runs were held out for a test."
    yield _errors("Out of fold", card.validated, card)
    if card.notes:
        yield "\n".join(f"- {note}" for note in card.notes)
    yield f"Candidates on {card.judged_on}:"
    yield _table(*candidate_table(card))


def _errors(title: str, by_scale: dict[str, ErrorMetrics], card: TargetCard) -> str:
    columns = [title, "runs", "configurations", "mean error", "MAE", "under-predicted", "over-prediction",
               f"within {100 * card.level:.0f} %", "upper end ÷ measured"]  # fmt: skip
    rows = [
        (
            SCALES.get(scale, scale),
            str(errors.runs),
            str(errors.configurations),
            _percent(errors.mape),
            format_metric(card.target, errors.mae),
            _percent(errors.upp, digits=0),
            _percent(errors.ov_mape),
            _percent(errors.coverage, digits=0),
            f"{errors.over_request:.2f}",
        )
        for scale, errors in by_scale.items()
    ]
    return _table(columns, rows)


def _range(feature: Feature) -> str:
    if feature.categorical:
        return ", ".join(str(choice) for choice in feature.choices)
    if feature.values:
        return ", ".join(f"{value:g}" for value in feature.values)
    return f"{feature.low:g} to {feature.high:g}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
