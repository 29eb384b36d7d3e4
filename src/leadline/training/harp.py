"""HARP 1.0 (Vallabhajoyula and Ramnath 2023), as published: the incumbent that predictions are measured against.

Three regressors are each fitted on four training sets, scaled-down runs with none, 25, 50 or 75 % of the full-scale
ones, and each is kept raw and adjusted: 24 models, of which a policy keeps one. ``faithful`` also does what the release
does wrong; without it the same models are fitted on clean data and chosen on runs that are not the test.
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
"""Training set → the share of the full-scale runs in it."""
VALIDATION = 0.25
"""Of the full-scale runs, from which the adjustment is taken."""
OUTLIER = 3.0
"""Runs whose walltime lies so many standard deviations from the mean are dropped by the release."""
VARIANCE = 0.99
"""What the principal components must explain; the paper does not say."""
SEED = 2048
"""The release's own."""


@dataclass(frozen=True, slots=True)
class HarpModel:
    """One of the 24: ``scored`` are its predictions where it is judged, ``predicted`` those for the test; seconds."""

    name: str
    adjustment: float
    scored: Array
    predicted: Array


@dataclass(frozen=True, slots=True)
class HarpBuild:
    """Everything HARP builds of one history; ``judged_by`` is what was measured where the models are scored."""

    models: tuple[HarpModel, ...]
    judged_by: Array

    def pick(self, policy: str) -> HarpModel:
        """Return the model that a policy keeps: ``mae``, ``wtm`` or ``wtm-published``."""
        name = choose_model(policy, list(self.judged_by), {one.name: list(one.scored) for one in self.models})
        return next(one for one in self.models if one.name == name)


def build_harp(
    samples: Sequence[Sample],
    test: Sequence[Sample],
    *,
    faithful: bool = True,
    work: str | None = None,
    seed: int = SEED,
) -> HarpBuild:
    """Fit the 24 models on ``samples`` and predict ``test``.

    With ``work``, a feature such as ``epochs``, in HARP's custom mode: work × the time of one + a constant, which is
    the mean start-up that the jobs reported. Where there are too few full-scale runs for a training set it is left out.
    Censored runs are left out: HARP knows none.

    ``faithful`` reproduces the faults of the release: long runs are dropped as outliers; categories become integers in
    any order; scaling and components are fitted on training and test rows together; the net never trains on the last
    fifth of its rows; models are scored on the labels of the test.

    Raises:
        InvalidInput: there are no scaled-down runs, or one has no ``work``.
        MissingExtra: scikit-learn is not installed.
    """
    samples = [one for one in samples if not one.censored]
    if not any(one.scale is Scale.SCALED_DOWN for one in samples):
        raise InvalidInput("HARP learns from scaled-down runs, and there is none: mark the small ones SD")
    _require_work([*samples, *test], work)
    rng = np.random.default_rng(seed)
    held_out = _validation(samples, rng, by_row=faithful)
    kept = _without_outliers(samples, test) if faithful else list(range(len(samples)))
    small = [at for at in kept if samples[at].scale is Scale.SCALED_DOWN]
    known = [*samples, *test]
    features = _features(known, len(known) if faithful else len(samples), rng, integers=faithful)
    trained, asked = features[: len(samples)], features[len(samples) :]
    validation = [at for at in kept if at in held_out.first]
    models = []
    for regressor in REGRESSORS:
        for name, share in SHARES.items():
            full = held_out.share(share, kept)
            if share and not full:
                continue
            rows = small + ([full[int(place)] for place in rng.integers(0, len(full), len(small))] if full else [])
            answer = _fit(regressor, [samples[at] for at in rows], trained[rows], work, faithful=faithful)
            predicted = answer(asked, test)
            validated = answer(trained[validation], [samples[at] for at in validation])
            factor = harp_adjustment(np.array([samples[at].value for at in validation]), validated)
            scored = predicted if faithful or not validation else validated
            models += [
                HarpModel(f"{regressor} {name} raw", 1.0, scored, predicted),
                HarpModel(f"{regressor} {name} adjusted", factor, scored * factor, predicted * factor),
            ]
    judges = test if faithful or not validation else [samples[at] for at in validation]
    return HarpBuild(tuple(models), np.asarray([one.value for one in judges]))


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """The full-scale runs in the order in which they are dealt out: the validation ones, then the rest, last first."""

    first: frozenset[int]
    rest: tuple[int, ...]

    def share(self, share: float, kept: Sequence[int]) -> list[int]:
        """Return the rows of a share of all full-scale runs, without what was dropped."""
        number = int(share * (len(self.first) + len(self.rest)))
        return [at for at in self.rest[max(len(self.rest) - number, 0) :] if at in set(kept)] if number else []


def _require_work(samples: Sequence[Sample], work: str | None) -> None:
    if work is None:
        return
    for one in samples:
        if not isinstance(one.features.get(work), int | float):
            said = one.features.get(work, "nothing")
            raise InvalidInput(f"HARP's custom mode needs a number of {work!r} in every run, and one has {said!r}")


def _validation(samples: Sequence[Sample], rng: np.random.Generator, *, by_row: bool) -> _HeldOut:
    """Deal a quarter of the full-scale runs out; ``by_row`` parts repeats of one configuration, as the release does."""
    full = [at for at, one in enumerate(samples) if one.scale is Scale.FULL_SCALE]
    groups: dict[str, list[int]] = {}
    for at in full:
        groups.setdefault(str(at) if by_row else samples[at].configuration, []).append(at)
    names = [list(groups)[int(place)] for place in rng.permutation(len(groups))]
    few = math.ceil(VALIDATION * len(names))
    first = frozenset(at for name in names[:few] for at in groups[name])
    return _HeldOut(first, tuple(at for name in names[few:] for at in groups[name]))


def _without_outliers(samples: Sequence[Sample], test: Sequence[Sample]) -> list[int]:
    """Return the places of the samples whose figure is no outlier among all rows; all test rows stay, to be scored."""
    values = np.asarray([one.value for one in [*samples, *test]])
    deviation = values.std() or 1.0
    return [at for at in range(len(samples)) if abs(values[at] - values.mean()) / deviation < OUTLIER]


def _features(samples: Sequence[Sample], fitted_on: int, rng: np.random.Generator, *, integers: bool) -> Array:
    """Return standardised principal components, shape (rows, components), fitted on the first ``fitted_on`` rows.

    Columns that are constant or not filled in every row are left out.
    """
    try:
        from sklearn.decomposition import PCA  # noqa: PLC0415 - only where HARP is measured
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("HARP", "train") from error
    columns = [
        column
        for name in sorted({name for one in samples for name in one.features})
        if all(name in one.features for one in samples)
        for column in _columns([one.features[name] for one in samples], rng, integers=integers)
        if np.ptp(column[:fitted_on]) > 0
    ]
    if not columns:
        raise InvalidInput("HARP has nothing to learn from: no parameter varies")
    raw = np.stack(columns, axis=1)
    scaler = StandardScaler().fit(raw[:fitted_on])
    components = PCA(VARIANCE, svd_solver="full").fit(scaler.transform(raw[:fitted_on]))
    found: Array = components.transform(scaler.transform(raw))
    return found


def _columns(values: Sequence[int | float | str], rng: np.random.Generator, *, integers: bool) -> list[Array]:
    if not any(isinstance(value, str) for value in values):
        return [np.asarray(values, float)]
    known = sorted({str(value) for value in values})
    if integers:
        code = {known[int(place)]: float(number) for number, place in enumerate(rng.permutation(len(known)))}
        return [np.asarray([code[str(value)] for value in values])]
    return [np.asarray([float(str(value) == one) for value in values]) for one in known]


def _fit(
    regressor: str, samples: Sequence[Sample], features: Array, work: str | None, *, faithful: bool
) -> Callable[[Array, Sequence[Sample]], Array]:
    """Return a function of features and samples to predicted figures."""
    constant = float(np.mean([one.startup_s or 0.0 for one in samples])) if work else 0.0
    targets = np.asarray([(one.value - constant) for one in samples]) / _units(samples, work)
    model = _regressor(regressor)
    rows = int(0.8 * len(targets)) if faithful and regressor == "net" else len(targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the net stops after its epochs, converged or not, as published
        model.fit(features[:rows], targets[:rows])

    def answer(asked: Array, about: Sequence[Sample]) -> Array:
        if not about:
            return np.empty(0)
        found: Array = model.predict(asked) * _units(about, work) + constant
        return found

    return answer


def _units(samples: Sequence[Sample], work: str | None) -> Array:
    return np.asarray([float(one.features[work]) if work else 1.0 for one in samples])


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
