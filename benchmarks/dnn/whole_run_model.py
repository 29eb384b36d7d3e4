"""Times of whole training runs from earlier runs of the same workloads, by Gaussian processes.

They model the deviation from a constant work per device at its speed. Two processes differ in how software gets faster,
and the prediction is their geometric mean. The similarity to earlier runs comes from ``run_similarity.py``. Variances
of the parts maximise the evidence. Outliers weigh less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.run_similarity import (
    AGEING,
    PARTS,
    WALKING,
    CovariancePart,
    EncodedRuns,
    FirstAppearances,
    WholeRun,
    covariance,
    encode_runs,
    find_first_appearances,
)
from leadline.core.errors import InvalidInput
from leadline.estimators.ports import Array, Predictions, State, floats, nest, strings, text_array, unnest

Positions = npt.NDArray[np.int64]

# Prior variance of the log time of a repeated run.
NOISE = 0.003
# Prior deviation of the log variance of a part.
BELIEF = 2.0
TUNED_ON, ROUNDS = 450, 25
WILD = 2.5
# Spread for each unit of log distance to the device counts of a workload's runs. The time may shrink with the devices
# or not at all, so it is the root mean square of a uniform variable on 0 to 1.
SATURATING = 3**-0.5
LEAST = 10


@dataclass(frozen=True, slots=True)
class RunTimeProcess:
    """One process: its parts, and their variances with that of the noise last (k + 1,).

    ``mean`` is that of the logarithms, ``alpha`` (n,) the weight of each run, and ``inverse`` (n, n) that of the
    covariance.
    """

    parts: tuple[CovariancePart, ...]
    variances: Array
    mean: float
    alpha: Array
    inverse: Array

    def predict(self, runs: EncodedRuns, learned: EncodedRuns) -> tuple[Array, Array]:
        """Return the logarithm of each time (m,) and its variance, noise included."""
        between, prior = (
            np.zeros((len(runs.figures["devices"]), len(self.alpha))),
            np.zeros(len(runs.figures["devices"])),
        )
        for part, variance in zip(self.parts, self.variances, strict=False):
            between += variance * covariance(part, runs, learned)
            prior += variance * _prior_variance(part, runs)
        explained = np.einsum("ij,jk,ik->i", between, self.inverse, between)
        return expected(runs) + self.mean + between @ self.alpha, np.maximum(prior - explained, 0.0) + self.variances[
            -1
        ]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The training runs with the processes fitted to them."""

    learned: EncodedRuns
    ages: FirstAppearances
    words: dict[str, dict[str, int]]
    forecasts: tuple[RunTimeProcess, ...]
    workloads: frozenset[str] = field(default_factory=frozenset)

    def predict(self, runs: Sequence[WholeRun]) -> Predictions:
        """Return the seconds of each run.

        ``extrapolation`` is the log ratio of the device count to the counts of the workload's runs; infinite for a new
        device.

        Raises:
            InvalidInput: a workload has no run in the training data.
        """
        if new := sorted({run.workload for run in runs} - self.workloads):
            raise InvalidInput(
                f"no run of {', '.join(new)} is in the training data, and other workloads "
                "cannot predict it: run it once first"
            )
        words = {name: dict(codes) for name, codes in self.words.items()}
        encoded = encode_runs(runs, self.ages, words)
        predictions = [forecast.predict(encoded, self.learned) for forecast in self.forecasts]
        log_s = np.mean([log_mean for log_mean, _ in predictions], axis=0)
        disagreement = np.var([log_mean for log_mean, _ in predictions], axis=0)
        beyond = self._beyond(encoded)
        spread = np.sqrt(
            np.mean([variance for _, variance in predictions], axis=0) + disagreement + (SATURATING * beyond) ** 2
        )
        unseen = np.array([run.device not in self.ages.device for run in runs])
        return Predictions(np.exp(log_s), spread, np.where(unseen, np.inf, beyond))

    def _beyond(self, encoded: EncodedRuns) -> Array:
        """Return the distance (m,) of the log device count to the counts of the workload's runs."""
        counts, distance = self.learned.figures["devices"], np.zeros(len(encoded.figures["devices"]))
        for place, (workload, count) in enumerate(
            zip(encoded.codes["workload"], encoded.figures["devices"], strict=True)
        ):
            counts_seen = counts[self.learned.codes["workload"] == workload]
            distance[place] = max(count - counts_seen.max(), counts_seen.min() - count, 0.0)
        return distance

    def dump(self) -> State:
        """Return all that ``predict`` needs."""
        state: State = {"start": np.array([self.ages.start]), "workloads": text_array(sorted(self.workloads))}
        for name, appearances in (("workload", self.ages.workload), ("device", self.ages.device)):
            state |= {
                f"ages.{name}": text_array(list(appearances)),
                f"ages.{name}.at": np.array(list(appearances.values())),
            }
        for name, codes in self.words.items():
            state[f"words.{name}"] = text_array(list(codes))
            state[f"codes.{name}"] = self.learned.codes[name].astype(np.float64)
        state |= {f"figures.{name}": array for name, array in self.learned.figures.items()}
        for number, array in enumerate(self.forecasts):
            arrays = {
                "variances": array.variances,
                "mean": np.array([array.mean]),
                "alpha": array.alpha,
                "inverse": array.inverse,
            }
            state |= nest(f"forecast{number}", arrays)
        return state


def fit_run_times(runs: Sequence[WholeRun], elapsed_s: Sequence[float], *, seed: int = 0) -> RunTimes:
    """Learn from n runs and their seconds.

    Raises:
        InvalidInput: there are too few runs, or a time or count is not above zero.
    """
    times = np.asarray(elapsed_s, np.float64)
    if len(times) < LEAST:
        raise InvalidInput(f"{len(times)} runs are too few for a prediction: give {LEAST} or more")
    if not np.all(times > 0) or min(run.devices for run in runs) < 1:
        raise InvalidInput("a run has no devices or took no time: leave it out")
    ages, words = find_first_appearances(runs), dict[str, dict[str, int]]()
    learned = encode_runs(runs, ages, words)
    some: Positions = np.arange(len(times))
    if len(times) > TUNED_ON:
        some = np.sort(np.random.default_rng(seed).choice(len(times), TUNED_ON, replace=False))
    forecasts = tuple(_forecast(parts, learned, np.log(times) - expected(learned), some) for parts in _process_parts())
    return RunTimes(learned, ages, words, forecasts, frozenset(run.workload for run in runs))


def expected(runs: EncodedRuns) -> Array:
    """Return the ideal log time (n,) of one unit of work that the devices share without waiting."""
    return np.asarray(-runs.figures["devices"] - runs.figures["speed"], np.float64)


def load_run_times(state: State) -> RunTimes:
    """Return what was dumped."""
    first = {
        name: dict(zip(strings(state[f"ages.{name}"]), floats(state[f"ages.{name}.at"]).tolist(), strict=True))
        for name in ("workload", "device")
    }
    names = [name.removeprefix("words.") for name in state if name.startswith("words.")]
    words = {name: {text: code for code, text in enumerate(strings(state[f"words.{name}"]))} for name in names}
    codes = {name: floats(state[f"codes.{name}"]).astype(np.int64) for name in names}
    figures = {name: floats(array) for name, array in unnest("figures", state).items()}
    forecasts = []
    for number, parts in enumerate(_process_parts()):
        arrays = {name: floats(array) for name, array in unnest(f"forecast{number}", state).items()}
        forecasts.append(
            RunTimeProcess(parts, arrays["variances"], float(arrays["mean"][0]), arrays["alpha"], arrays["inverse"])
        )
    ages = FirstAppearances(float(floats(state["start"])[0]), first["workload"], first["device"])
    return RunTimes(EncodedRuns(codes, figures), ages, words, tuple(forecasts), frozenset(strings(state["workloads"])))


def _process_parts() -> tuple[tuple[CovariancePart, ...], ...]:
    """Return the parts of each forecast: speed-up that slows down with age, and speed that wanders."""
    return (*PARTS, *AGEING, *WALKING), (*PARTS, *WALKING)


def _forecast(parts: tuple[CovariancePart, ...], learned: EncodedRuns, logs: Array, some: Positions) -> RunTimeProcess:
    """Return the process of ``parts``, tuned on ``some`` runs, conditioned on all, robust to outliers."""
    variances = _tune_variances(parts, learned.at(some), logs[some])
    whole = np.zeros((len(logs), len(logs)))
    for part, variance in zip(parts, variances, strict=False):
        whole += variance * covariance(part, learned, learned)
    mean, weight = float(logs.mean()), np.ones(len(logs))
    for _ in range(3):
        inverse = np.linalg.inv(whole + np.diag(variances[-1] / weight))
        alpha = inverse @ (logs - mean)
        left_out = np.abs(alpha / np.diag(inverse))  # the error of each run by all others
        most = WILD * 1.4826 * float(np.median(left_out))
        weight = np.minimum(1.0, (most / np.maximum(left_out, 1e-12)) ** 2)
    return RunTimeProcess(parts, variances, mean, alpha, np.asarray(inverse, np.float64))


def _tune_variances(parts: tuple[CovariancePart, ...], learned: EncodedRuns, logs: Array) -> Array:
    """Return the variances of most evidence times belief, the noise's last."""
    from scipy.optimize import minimize  # noqa: PLC0415 - needed to fit alone

    matrices = [covariance(part, learned, learned) for part in parts]
    believed = np.log([*(part.variance for part in parts), NOISE])
    target = logs - logs.mean()

    def badness(theta: Array) -> tuple[float, Array]:
        variances = np.exp(theta)
        whole = variances[-1] * np.eye(len(target))
        for variance, matrix in zip(variances, matrices, strict=False):
            whole += variance * matrix
        factor = np.linalg.cholesky(whole)
        root = np.linalg.inv(factor)
        inverse = root.T @ root
        alpha = inverse @ target
        pull = (inverse - np.outer(alpha, alpha)) / 2
        gradient = [
            variance * float(np.sum(pull * matrix)) for variance, matrix in zip(variances, matrices, strict=False)
        ]
        gradient.append(float(variances[-1] * np.trace(pull)))
        off = (theta - believed) / BELIEF
        value = float(target @ alpha) / 2 + float(np.log(np.diag(factor)).sum()) + float(off @ off) / 2
        return value, np.array(gradient) + off / BELIEF

    bounds = [(centre - 5 * BELIEF, centre + 3 * BELIEF) for centre in believed]
    answer = minimize(badness, believed, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": ROUNDS})
    return np.asarray(np.exp(answer.x), np.float64)


def _prior_variance(part: CovariancePart, runs: EncodedRuns) -> Array:
    """Return the variance of a part of unit variance at each run."""
    if not part.slope:
        return np.ones(len(runs.figures["devices"]))
    figure = runs.figures[part.slope]
    if part.slope == "walk":
        return figure
    return np.asarray((figure - (2.0 if part.slope == "devices" else 0.0)) ** 2, np.float64)
