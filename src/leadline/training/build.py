"""Train the model of an application: every target, and the card."""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from leadline import __version__
from leadline.core.frozen import Frozen
from leadline.core.runs import Run, Sample, Scale, TrainingSet, Value
from leadline.core.trained_model import Feature
from leadline.estimators.ports import TabularEstimator
from leadline.training.dataset import make_dataset, numbers_of
from leadline.training.fitting import LEVEL, TrainedTarget, train_target
from leadline.training.model import ApplicationModel
from leadline.training.model_card import CandidateErrors, ModelCard, ScaleCard, TargetCard
from leadline.training.records import Progress, RunRecord, TrainingOptions

PACKAGES = ("numpy", "scipy", "scikit-learn")


class TrainingOrigin(Frozen):
    """Source of the records, time of training, and the commands to repeat it and to run the application."""

    source: str
    trained_at: str
    reproduce: str
    command: tuple[str, ...] = ()


def build_model(
    records: Sequence[RunRecord],
    estimators: Mapping[str, TabularEstimator],
    origin: TrainingOrigin,
    options: TrainingOptions,
    *,
    progress: Progress = lambda *_: None,
) -> tuple[ApplicationModel, tuple[TrainedTarget, ...]]:
    """Train a model; also return its targets, which the plots and tables show.

    Raises:
        InvalidInput: the records cannot be trained on; the message names the run and the fix.
        UnknownName: no such policy or category.
    """
    targets = tuple(dict.fromkeys(options.targets or measured_targets(records)))
    trained = []
    for target in targets:
        data = make_dataset(records, target, options)

        def report(task: str, number: int, count: int, target: str = target) -> None:
            progress(f"{target}: {task}", number, count)

        trained.append(train_target(data, estimators, options, report))
    return _make_model(trained, origin, options.seed), tuple(trained)


def measured_targets(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the default targets: the walltime, and each kind of memory that every completed run has measured."""
    completed = [record for record in records if record.state.value == "COMPLETED"]

    def is_measured(name: str) -> bool:
        return bool(completed) and all(record.metrics.get(name, 0) > 0 for record in completed)

    return ("elapsed_s", *filter(is_measured, ("host_memory_bytes", "gpu_memory_bytes")))


def _make_model(trained: Sequence[TrainedTarget], origin: TrainingOrigin, seed: int) -> ApplicationModel:
    first = trained[0].data
    started = sorted(start for start in first.started if start)
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
        targets=tuple(_target_card(target) for target in trained),
        command=origin.command,
        units=dict(first.dataset.units),
    )
    by_name = {target.data.dataset.target: target for target in trained}
    calibrations = {name: target.calibration for name, target in by_name.items()}
    return ApplicationModel(card, {name: target.fitted for name, target in by_name.items()}, calibrations)


def _all_features(trained: Sequence[TrainedTarget]) -> tuple[Feature, ...]:
    """Return the features of all targets, each with the range that all of them cover."""
    features: dict[str, Feature] = {}
    for feature in (feature for target in trained for feature in target.data.features):
        first = features.setdefault(feature.name, feature)
        if first.low is None or first.high is None or feature.low is None or feature.high is None:
            continue
        # Targets count different runs as samples, so their ranges may differ.
        low, high = max(first.low, feature.low), min(first.high, feature.high)
        features[feature.name] = replace(first, low=low, high=max(low, high))
    return tuple(features.values())


def _target_card(trained: TrainedTarget) -> TargetCard:
    dataset, selection = trained.data.dataset, trained.selection
    return TargetCard(
        target=dataset.target,
        estimator=selection.winner.name,
        factor=selection.factor,
        policy=selection.policy,
        reason=selection.reason,
        judged_on=selection.judged_on,
        level=LEVEL,
        scales={scale.value: _scale_card(samples) for scale in Scale if (samples := dataset.at(scale))},
        censored=trained.data.censored,
        unmeasured=trained.data.unmeasured,
        failures=trained.data.failures,
        scale_features=dataset.scale_features,
        within=_scaled_down_ranges(dataset),
        candidates=tuple(map(_candidate, selection.scores)),
        tested=trained.tested,
        validated=trained.validated,
        notes=trained.notes,
    )


def _scale_card(samples: Sequence[Sample]) -> ScaleCard:
    configurations = {sample.configuration for sample in samples}
    return ScaleCard(len(configurations), len(samples), sum(sample.cost_s for sample in samples))


def _scaled_down_ranges(dataset: TrainingSet) -> dict[str, tuple[float, float]]:
    """Return the range of each scale feature over the scaled-down runs."""
    numbers = {name: numbers_of(dataset.at(Scale.SCALED_DOWN), name) for name in dataset.scale_features}
    return {name: (min(values), max(values)) for name, values in numbers.items() if values}


def _candidate(errors: CandidateErrors) -> CandidateErrors:
    # JSON has no infinity.
    return replace(errors, policy=tuple(value if math.isfinite(value) else 1e300 for value in errors.policy))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not known"


def infer_command(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the command of an application with ``{parameters}``, inferred from the commands of its runs.

    A parameter replaces each word that was its value in every run; so do the cores and GPUs. Empty where the commands
    differ otherwise, or a parameter appears in no word.
    """
    if not runs or len({len(run.job.command) for run in runs}) != 1:
        return ()
    values = [_parameter_values(run) for run in runs]
    command = []
    for place in range(len(runs[0].job.command)):
        words = [run.job.command[place] for run in runs]
        constant = len(set(words)) == 1 and not _is_constant_parameter(words[0], values)
        word = words[0] if constant else _template(words, values)
        if word is None:
            return ()
        command.append(word)
    missing = [name for name in runs[0].parameters if not any(f"{{{name}}}" in word for word in command)]
    return () if missing else tuple(command)


def _parameter_values(run: Run) -> Mapping[str, Value]:
    request = run.job.resources
    resources: dict[str, Value] = {"gpus": request.gpus_per_node}
    if request.cores_per_task is not None:
        resources["cores"] = request.cores_per_task
    return {**run.parameters, **resources}


def _is_constant_parameter(word: str, values: Sequence[Mapping[str, Value]]) -> bool:
    """Return whether a word that is the same in all runs is the value of a parameter that never varied."""
    constant = [name for name, value in values[0].items() if all(run.get(name) == value for run in values)]
    # A word equal to the number of cores or GPUs is more often a coincidence.
    return any(word == str(values[0][name]) for name in constant if name not in ("gpus", "cores"))


def _template(words: Sequence[str], values: Sequence[Mapping[str, Value]]) -> str | None:
    """Return a word with one parameter in it, such as ``--epochs={epochs}``; ``None`` where none explains it."""
    for name in values[0]:
        if not all(name in run for run in values):
            continue
        value = str(values[0][name])
        for place in range(len(words[0])):
            if not words[0].startswith(value, place):
                continue
            head, tail = words[0][:place], words[0][place + len(value) :]
            if all(word == f"{head}{run[name]}{tail}" for word, run in zip(words, values, strict=True)):
                return f"{head}{{{name}}}{tail}"
    return None
