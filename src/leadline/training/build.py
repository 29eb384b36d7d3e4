"""Train a model of an application: every target that is asked for, and the card of the whole."""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from leadline import __version__
from leadline.core.models import Feature
from leadline.core.runs import Scale
from leadline.core.samples import Dataset
from leadline.estimators.tabular.ports import TabularEstimator
from leadline.training.card import CandidateErrors, Card, ScaleCard, TargetCard
from leadline.training.dataset import make_dataset
from leadline.training.fitting import LEVEL, Trained, train_target
from leadline.training.model import Model
from leadline.training.records import Record
from leadline.training.select import Score
from leadline.training.trial import Progress

PACKAGES = ("numpy", "scipy", "scikit-learn")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the records come from, when they are learned from, and how: what the card says besides the figures."""

    source: str
    trained_at: str
    reproduce: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """How to train; ``targets`` empty: the walltime, and each kind of memory that was measured."""

    targets: tuple[str, ...] = ()
    policy: str = "mape"
    scale_features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    seed: int = 0
    jobs: int | None = 1


def build(
    records: Sequence[Record],
    estimators: Mapping[str, TabularEstimator],
    origin: Origin,
    options: Options,
    *,
    progress: Progress = lambda *_: None,
) -> tuple[Model, tuple[Trained, ...]]:
    """Return the model, and of each target what the plots and the table show.

    Raises:
        InvalidInput: the records cannot be learned from; a sentence that names the run and the fix.
        UnknownName: there is no such policy.
    """
    targets = tuple(dict.fromkeys(options.targets or measured_targets(records)))
    trained = []
    for target in targets:
        data = make_dataset(
            records,
            target,
            scale_features=options.scale_features,
            without=options.without,
            categories=options.categories,
        )

        def say(what: str, number: int, count: int, target: str = target) -> None:
            progress(f"{target}: {what}", number, count)

        trained.append(
            train_target(data, estimators, policy=options.policy, seed=options.seed, jobs=options.jobs, progress=say)
        )
    return make_model(trained, origin, options.seed), tuple(trained)


def measured_targets(records: Sequence[Record]) -> tuple[str, ...]:
    """Return what to learn by default: the walltime, and the memory that every completed run has measured."""
    completed = [one for one in records if one.state.value == "COMPLETED"]
    memory = [
        name
        for name in ("host_memory_bytes", "gpu_memory_bytes")
        if completed and all(one.figures.get(name, 0) > 0 for one in completed)
    ]
    return ("elapsed_s", *memory)


def make_model(trained: Sequence[Trained], origin: Origin, seed: int) -> Model:
    """Return the model of all targets; each is of the same application."""
    first = trained[0].data
    started = sorted(one for one in first.started if one)
    card = Card(
        application=first.dataset.application,
        runs=first.runs,
        first_run=started[0] if started else "",
        last_run=started[-1] if started else "",
        source=origin.source,
        trained_at=origin.trained_at,
        leadline=__version__,
        versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        seed=seed,
        reproduce=origin.reproduce,
        features=_all_features(trained),
        targets=tuple(_target_card(one) for one in trained),
        command=origin.command,
        units=dict(first.dataset.units),
    )
    return Model(
        card,
        {one.data.dataset.target: one.fitted for one in trained},
        {one.data.dataset.target: one.calibration for one in trained},
    )


def _all_features(trained: Sequence[Trained]) -> tuple[Feature, ...]:
    """Return the features of all targets; runs that count for one only may have gone farther."""
    found: dict[str, Feature] = {}
    for one in (feature for each in trained for feature in each.data.features):
        known = found.setdefault(one.name, one)
        if known.low is not None and known.high is not None and one.low is not None and one.high is not None:
            low, high = max(known.low, one.low), min(known.high, one.high)
            found[one.name] = replace(known, low=low, high=max(low, high))
    return tuple(found.values())


def _target_card(one: Trained) -> TargetCard:
    dataset, selection = one.data.dataset, one.selection
    return TargetCard(
        target=dataset.target,
        estimator=selection.winner.name,
        factor=one.factor,
        policy=selection.policy,
        reason=selection.reason,
        judged_on=selection.judged_on,
        level=LEVEL,
        scales=_scales(dataset),
        censored=one.data.censored,
        unmeasured=one.data.unmeasured,
        failures=one.data.failures,
        scale_features=dataset.scale_features,
        within=_within(dataset),
        candidates=tuple(_candidate(score) for score in selection.scores),
        tested=one.tested,
        validated=one.validated,
        notes=one.notes,
    )


def _scales(dataset: Dataset) -> dict[str, ScaleCard]:
    found = {}
    for scale in Scale:
        if samples := dataset.at(scale):
            names = {one.configuration for one in samples}
            found[scale.value] = ScaleCard(len(names), len(samples), sum(one.cost_s for one in samples))
    return found


def _within(dataset: Dataset) -> dict[str, tuple[float, float]]:
    """Return the range that the scaled-down runs have of each feature that carries scale."""
    found = {}
    for name in dataset.scale_features:
        values = [one.features[name] for one in dataset.at(Scale.SCALED_DOWN) if name in one.features]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if numbers:
            found[name] = (min(numbers), max(numbers))
    return found


def _candidate(score: Score) -> CandidateErrors:
    if score.why_not:
        known = score.mape if math.isfinite(score.mape) else None
        return CandidateErrors(score.candidate.name, known, why_not=score.why_not)
    policy = tuple(one if math.isfinite(one) else 1e300 for one in score.policy)
    return CandidateErrors(score.candidate.name, score.mape, score.mae, score.upp, score.ov_mape, policy)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not known"
