"""HARP 1.0 (Vallabhajosyula and Ramnath 2023) as published, the incumbent that predictions are compared with.

HARP fits three regressors on four training sets: the scaled-down runs with none, 25, 50 or 75 % of the full-scale ones.
It keeps each fit raw and adjusted, and a policy chooses one of these 24 models. ``faithful`` reproduces the faults of
the release too. Without it, the same models are fitted on clean data and chosen on runs outside the test.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.runs import Sample, Scale
from leadline.training.cross_validation import harp_adjustment
from leadline.uncertainty.metrics import choose_model

Array = npt.NDArray[np.float64]

REGRESSORS = ("linear", "net", "tree")
SHARES = {"SD": 0.0, "SD+25%FS": 0.25, "SD+50%FS": 0.5, "SD+75%FS": 0.75}
"""Training set to its share of the full-scale runs."""
VALIDATION = 0.25
"""Share of the full-scale runs from which the adjustment is computed."""
OUTLIER = 3.0
"""Standard deviations from the mean walltime at which the release drops a run."""
VARIANCE = 0.99
"""Share of variance that the principal components explain; the paper does not give it."""
SEED = 2048
"""As in the release."""


@dataclass(frozen=True, slots=True)
class HarpModel:
    """One of the 24 models: its predictions in seconds where it is scored, and for the test."""

    name: str
    adjustment: float
    scored: Array
    predicted: Array


@dataclass(frozen=True, slots=True)
class HarpBuild:
    """All models of one history, and the measurements that score them."""

    models: tuple[HarpModel, ...]
    judged_by: Array

    def pick(self, policy: str) -> HarpModel:
        """Return the model that a policy chooses: ``mae``, ``wtm`` or ``wtm-published``."""
        name = choose_model(policy, list(self.judged_by), {model.name: list(model.scored) for model in self.models})
        return next(model for model in self.models if model.name == name)


def build_harp(
    samples: Sequence[Sample],
    test: Sequence[Sample],
    *,
    faithful: bool = True,
    work: str | None = None,
    seed: int = SEED,
) -> HarpBuild:
    """Fit the 24 models on ``samples`` and predict ``test``.

    A training set without full-scale runs is left out, and so are censored runs: HARP has no notion of them.

    Args:
        samples: to fit on.
        test: to predict.
        faithful: reproduce the faults of the release. It drops long runs as outliers, encodes categories as integers in
            random order, fits scaling and components on training and test rows together, never trains the net on the
            last fifth of its rows, and scores models on the labels of the test.
        work: a feature such as ``epochs``, for HARP's custom mode: work × the time of one + the mean start-up.
        seed: of all random choices.

    Raises:
        InvalidInput: no scaled-down run, or a run without ``work``.
        MissingExtra: scikit-learn is not installed.
    """
    samples = [sample for sample in samples if not sample.censored]
    if not any(sample.scale is Scale.SCALED_DOWN for sample in samples):
        raise InvalidInput("HARP learns from scaled-down runs, and there are none: mark the small ones SD")
    for sample in (*samples, *test) if work else ():
        if not isinstance(sample.features.get(work or ""), int | float):
            value = sample.features.get(work or "", "nothing")
            raise InvalidInput(f"HARP's custom mode needs a number of {work!r} in every run, and one has {value!r}")
    rng = np.random.default_rng(seed)
    held_out = _validation(samples, rng, by_row=faithful)
    kept = _without_outliers(samples, test) if faithful else list(range(len(samples)))
    small = [row for row in kept if samples[row].scale is Scale.SCALED_DOWN]
    everything = [*samples, *test]
    features = _features(everything, len(everything) if faithful else len(samples), rng, integers=faithful)
    trained, tested = features[: len(samples)], features[len(samples) :]
    validation = [row for row in kept if row in held_out.first]
    judges = test if faithful or not validation else [samples[row] for row in validation]
    models = []
    for regressor in REGRESSORS:
        for name, share in SHARES.items():
            full = held_out.share(share, kept)
            if share and not full:
                continue
            rows = small + ([full[int(place)] for place in rng.integers(0, len(full), len(small))] if full else [])
            predict = _fit(regressor, [samples[row] for row in rows], trained[rows], work, faithful=faithful)
            predicted = predict(tested, test)
            validated = predict(trained[validation], [samples[row] for row in validation])
            factor = harp_adjustment(np.array([samples[row].value for row in validation]), validated)
            scored = predicted if faithful or not validation else validated
            models += [
                HarpModel(f"{regressor} {name} raw", 1.0, scored, predicted),
                HarpModel(f"{regressor} {name} adjusted", factor, scored * factor, predicted * factor),
            ]
    return HarpBuild(tuple(models), np.asarray([sample.value for sample in judges]))


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """Rows of the full-scale runs: those for validation, and the others, which are used last first."""

    first: frozenset[int]
    remaining: tuple[int, ...]

    def share(self, share: float, kept: Sequence[int]) -> list[int]:
        """Return the rows of a share of all full-scale runs, without the dropped ones."""
        number = int(share * (len(self.first) + len(self.remaining)))
        return (
            [row for row in self.remaining[max(len(self.remaining) - number, 0) :] if row in set(kept)]
            if number
            else []
        )


def _validation(samples: Sequence[Sample], rng: np.random.Generator, *, by_row: bool) -> _HeldOut:
    """Hold out a quarter of the full-scale runs; ``by_row`` separates repeats of a configuration, as the release."""
    full = [row for row, sample in enumerate(samples) if sample.scale is Scale.FULL_SCALE]
    groups: dict[str, list[int]] = {}
    for row in full:
        groups.setdefault(str(row) if by_row else samples[row].configuration, []).append(row)
    names = [list(groups)[int(place)] for place in rng.permutation(len(groups))]
    few = math.ceil(VALIDATION * len(names))
    first = frozenset(row for name in names[:few] for row in groups[name])
    return _HeldOut(first, tuple(row for name in names[few:] for row in groups[name]))


def _without_outliers(samples: Sequence[Sample], test: Sequence[Sample]) -> list[int]:
    """Return the rows of the samples that are no outliers among all rows; test rows are never dropped."""
    values = np.asarray([sample.value for sample in [*samples, *test]])
    deviation = values.std() or 1.0
    return [row for row in range(len(samples)) if abs(values[row] - values.mean()) / deviation < OUTLIER]


def _features(samples: Sequence[Sample], fitted_on: int, rng: np.random.Generator, *, integers: bool) -> Array:
    """Return standardised principal components of shape (rows, components), fitted on the first ``fitted_on`` rows.

    Columns that are constant or incomplete are left out.
    """
    try:
        from sklearn.decomposition import PCA  # noqa: PLC0415 - only where HARP is measured
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("HARP", "train") from error
    columns = [
        column
        for name in sorted({name for sample in samples for name in sample.features})
        if all(name in sample.features for sample in samples)
        for column in _columns([sample.features[name] for sample in samples], rng, integers=integers)
        if np.ptp(column[:fitted_on]) > 0
    ]
    if not columns:
        raise InvalidInput("HARP has nothing to learn from: no parameter varies")
    raw = np.stack(columns, axis=1)
    scaler = StandardScaler().fit(raw[:fitted_on])
    components = PCA(VARIANCE, svd_solver="full").fit(scaler.transform(raw[:fitted_on]))
    transformed: Array = components.transform(scaler.transform(raw))
    return transformed


def _columns(values: Sequence[int | float | str], rng: np.random.Generator, *, integers: bool) -> list[Array]:
    if not any(isinstance(value, str) for value in values):
        return [np.asarray(values, float)]
    categories = sorted({str(value) for value in values})
    if integers:
        order = enumerate(rng.permutation(len(categories)))
        code = {categories[int(place)]: float(number) for number, place in order}
        return [np.asarray([code[str(value)] for value in values])]
    return [np.asarray([float(str(value) == category) for value in values]) for category in categories]


def _fit(
    regressor: str, samples: Sequence[Sample], features: Array, work: str | None, *, faithful: bool
) -> Callable[[Array, Sequence[Sample]], Array]:
    """Return a function from features and samples to predicted values."""
    constant = float(np.mean([sample.startup_s or 0.0 for sample in samples])) if work else 0.0
    targets = np.asarray([(sample.value - constant) for sample in samples]) / _units(samples, work)
    model = _regressor(regressor)
    rows = int(0.8 * len(targets)) if faithful and regressor == "net" else len(targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the net stops after its epochs, converged or not, as published
        model.fit(features[:rows], targets[:rows])

    def predict(features: Array, samples: Sequence[Sample]) -> Array:
        if not samples:
            return np.empty(0)
        predicted: Array = model.predict(features) * _units(samples, work) + constant
        return predicted

    return predict


def _units(samples: Sequence[Sample], work: str | None) -> Array:
    return np.asarray([float(sample.features[work]) if work else 1.0 for sample in samples])


def _regressor(name: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - scikit-learn has no types
    from sklearn.linear_model import LinearRegression  # noqa: PLC0415
    from sklearn.neural_network import MLPRegressor  # noqa: PLC0415
    from sklearn.tree import DecisionTreeRegressor  # noqa: PLC0415

    if name == "linear":
        return LinearRegression()
    if name == "tree":
        return DecisionTreeRegressor(random_state=0)
    return MLPRegressor(
        hidden_layer_sizes=(128, 64),
        learning_rate_init=0.01,
        batch_size=20,
        max_iter=50,
        n_iter_no_change=50,
        tol=0.0,
        alpha=0.0,
        random_state=SEED,
    )
