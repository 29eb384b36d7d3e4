"""Train a model of an application: every target that is asked for, and the card of the whole."""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from leadline import __version__
from leadline.core.runs import Run, Scale, TrainingSet, Value
from leadline.core.trained_model import Feature
from leadline.estimators.ports import TabularEstimator
from leadline.training.candidate_race import Progress
from leadline.training.dataset import make_dataset
from leadline.training.fitting import LEVEL, TrainedTarget, train_target
from leadline.training.model import ApplicationModel
from leadline.training.model_card import CandidateErrors, ModelCard, ScaleCard, TargetCard
from leadline.training.records import RunRecord
from leadline.training.selection import CandidateScore

PACKAGES = ("numpy", "scipy", "scikit-learn")


@dataclass(frozen=True, slots=True)
class TrainingOrigin:
    """Where the records come from, when they are learned from, and how: what the card says besides the figures."""

    source: str
    trained_at: str
    reproduce: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How to train; ``targets`` empty: the walltime, and each kind of memory that was measured."""

    targets: tuple[str, ...] = ()
    policy: str = "mape"
    scale_features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    seed: int = 0
    jobs: int | None = 1


def build_model(
    records: Sequence[RunRecord],
    estimators: Mapping[str, TabularEstimator],
    origin: TrainingOrigin,
    options: TrainingOptions,
    *,
    progress: Progress = lambda *_: None,
) -> tuple[ApplicationModel, tuple[TrainedTarget, ...]]:
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


def measured_targets(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return what to learn by default: the walltime, and the memory that every completed run has measured."""
    completed = [one for one in records if one.state.value == "COMPLETED"]
    memory = [
        name
        for name in ("host_memory_bytes", "gpu_memory_bytes")
        if completed and all(one.metrics.get(name, 0) > 0 for one in completed)
    ]
    return ("elapsed_s", *memory)


def make_model(trained: Sequence[TrainedTarget], origin: TrainingOrigin, seed: int) -> ApplicationModel:
    """Return the model of all targets; each is of the same application."""
    first = trained[0].data
    started = sorted(one for one in first.started if one)
    card = ModelCard(
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
    return ApplicationModel(
        card,
        {one.data.dataset.target: one.fitted for one in trained},
        {one.data.dataset.target: one.calibration for one in trained},
    )


def _all_features(trained: Sequence[TrainedTarget]) -> tuple[Feature, ...]:
    """Return the features of all targets; runs that count for one only may have gone farther."""
    found: dict[str, Feature] = {}
    for one in (feature for each in trained for feature in each.data.features):
        known = found.setdefault(one.name, one)
        if known.low is not None and known.high is not None and one.low is not None and one.high is not None:
            low, high = max(known.low, one.low), min(known.high, one.high)
            found[one.name] = replace(known, low=low, high=max(low, high))
    return tuple(found.values())


def _target_card(one: TrainedTarget) -> TargetCard:
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


def _scales(dataset: TrainingSet) -> dict[str, ScaleCard]:
    found = {}
    for scale in Scale:
        if samples := dataset.at(scale):
            names = {one.configuration for one in samples}
            found[scale.value] = ScaleCard(len(names), len(samples), sum(one.cost_s for one in samples))
    return found


def _within(dataset: TrainingSet) -> dict[str, tuple[float, float]]:
    """Return the range that the scaled-down runs have of each feature that carries scale."""
    found = {}
    for name in dataset.scale_features:
        values = [one.features[name] for one in dataset.at(Scale.SCALED_DOWN) if name in one.features]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if numbers:
            found[name] = (min(numbers), max(numbers))
    return found


def _candidate(score: CandidateScore) -> CandidateErrors:
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


def infer_command(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the words with ``{name}`` where a parameter's value, or the cores or GPUs, stood in every run.

    Nothing where the runs' commands differ in more than that, or a parameter stands in no word.
    """
    if not runs or len({len(run.job.command) for run in runs}) != 1:
        return ()
    values = [_values(run) for run in runs]
    words = []
    for place in range(len(runs[0].job.command)):
        said = [run.job.command[place] for run in runs]
        word = said[0] if len(set(said)) == 1 and not _stands(said[0], values) else _template(said, values)
        if word is None:
            return ()
        words.append(word)
    missing = [name for name in runs[0].parameters if not any(f"{{{name}}}" in word for word in words)]
    return () if missing else tuple(words)


def _values(run: Run) -> Mapping[str, Value]:
    asked = run.job.resources
    resources: dict[str, Value] = {"gpus": asked.gpus_per_node}
    if asked.cores_per_task is not None:
        resources["cores"] = asked.cores_per_task
    return {**run.parameters, **resources}


def _stands(word: str, values: Sequence[Mapping[str, Value]]) -> bool:
    """Whether a word that is the same in all runs is the value of a parameter that never varied."""
    constant = [name for name, value in values[0].items() if all(each.get(name) == value for each in values)]
    return any(word == str(values[0][name]) for name in constant if name not in ("gpus", "cores"))


def _template(said: Sequence[str], values: Sequence[Mapping[str, Value]]) -> str | None:
    """Return a word with one parameter in it, such as ``--epochs={epochs}``; ``None`` where none explains it."""
    for name in values[0]:
        if not all(name in each for each in values):
            continue
        for head, tail in _around(said[0], str(values[0][name])):
            if all(word == f"{head}{each[name]}{tail}" for word, each in zip(said, values, strict=True)):
                return f"{head}{{{name}}}{tail}"
    return None


def _around(word: str, value: str) -> list[tuple[str, str]]:
    """Return what stands before and after each place of ``value`` in ``word``."""
    places = [at for at in range(len(word)) if word.startswith(value, at)]
    return [(word[:at], word[at + len(value) :]) for at in places]
