"""Scaling models: target = start-up + work × unit time, in one of several forms.

A form is a sum of a part that does not grow with scale (the start-up) and one that does (the work).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Value
from leadline.estimators.ports import Array, FittedModel, IntArray, Mask, Predictions, State, Stored, unnest
from leadline.estimators.tabular import corrections, encoding, tables
from leadline.estimators.tabular.corrections import FullScaleCorrection, UnitTimeCorrection
from leadline.estimators.tabular.encoding import FeatureEncoding


class FormProblem(Frozen):
    """Target ``logs`` (n,) at inputs ``u`` (n, columns), with ``weight`` of mean one.

    ``u`` are centred logarithms where ``stretched``, else standardised. ``scales`` marks columns that carry scale,
    ``crossed`` those that vary its exponents between categories. ``steady`` marks columns of scale on which a unit's
    time hardly depends.
    """

    u: Array
    logs: Array
    weight: Array
    scales: Mask
    stretched: Mask
    crossed: Mask
    steady: Mask


class FittedForm(Stored):
    """A fitted form; needs numpy alone."""

    @abstractmethod
    def halves(self, u: Array) -> tuple[Array, Array]:
        """Return the logarithms of the start-up and of the work (n,), minus infinity where there is none."""

    @abstractmethod
    def spread(self, u: Array) -> Array:
        """Return the log deviation (n,) due to the uncertainty of the form."""


class FormFit(Frozen):
    """A law with the deviation of each sample about it (n,), and the logarithm of its evidence."""

    law: FittedForm
    sigma: Array
    evidence: float


class ModelForm(Frozen):
    """A recipe for a ``FittedForm`` of the class ``fitted``, whose few parameters ``largest`` samples determine."""

    fitted: ClassVar[type[FittedForm]]

    largest: int

    @abstractmethod
    def fit(self, problem: FormProblem, seed: int) -> list[FormFit]:
        """Return fits of different complexity, at least one."""


def log_sum(terms: Array) -> Array:
    """Return the logarithm of the sum of exp(terms) over each row."""
    most = np.maximum(terms.max(axis=1, initial=-np.inf), -1e300)
    with np.errstate(divide="ignore"):
        return np.asarray(most + np.log(np.exp(terms - most[:, None]).sum(axis=1)), np.float64)


ROUNDS = 3  # rounds of fitting model and correction in turn, where a correction helps
# Columns of categories have at most so many values, where these do not say the same as others.
FEW_VALUES, MOST_CROSSES = 4, 16
GROWTH = 0.05  # spread per fitted range of extrapolation, in addition to the uncertainty of the exponents


class FittedScalingModel(FittedModel):
    """Fits of one form, each with its posterior share."""

    figures = ("error", "limits")

    encoding: FeatureEncoding
    crosses: IntArray
    laws: tuple[FittedForm, ...]
    shares: Array
    correction: UnitTimeCorrection | None
    bend: FullScaleCorrection
    error: float
    limits: Array

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predictions:
        """Predict each row; with nothing else changed, more work never takes less."""
        x, beyond = self.encoding.encode(rows)
        u = _logs(x, self.encoding, self.crosses)
        more, unsure = self.correction.at(x) if self.correction else (np.zeros(len(x)), np.zeros(len(x)))
        each = _form_logs(self.laws, u, more)
        logs = self.shares @ each
        between = self.shares @ (each - logs) ** 2
        inside = self.shares @ np.stack([law.spread(u) ** 2 for law in self.laws])
        spread = np.sqrt(self.error**2 + between + inside + unsure**2)
        return tables.predictions(self.bend.at(logs, x), self.limits, spread, beyond, GROWTH)


class ScalingModel(Frozen):
    """Fits one form: a start-up that does not grow with scale, and work that does.

    Evidence weighs the complexity, and whether exponents of scale differ between categories. With ``corrected`` a
    correction of the residuals is fitted if it helps. A ``steady`` target hardly depends on scale, such as the time of
    a unit of work.
    """

    name: str
    form: ModelForm
    least: int = 6
    corrected: bool = True
    steady: bool = False

    def fit(
        self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0
    ) -> FittedScalingModel:
        """Fit the law; censored samples count with what is expected above them."""
        table = tables.tabulate_samples(samples, least=self.least, estimator=self.name)
        if self.steady:
            table = replace(table, weight=np.ones(len(table)))
        encoder = encoding.learn_encoding(table.rows, scale_features)
        x = encoder.encode(table.rows)[0]
        crosses = _crosses(x, encoder)
        task = _Task(self.form, encoder, crosses, x, table, seed, self.steady)
        logs = tables.impute_censored(table, task.expect)
        laws, shares, correction = task.alternate(logs, rounds=ROUNDS if self.corrected else 0)
        fitted = shares @ _form_logs(laws, task.u, correction.at(task.x)[0] if correction else np.zeros(len(table)))
        bent = corrections.fit_full_scale_correction(x, fitted, table, logs, encoder.scales.astype(bool))
        error = tables.robust_deviation(logs - bent.at(fitted, x), table.weight)
        limits = np.array([table.logs.min(), table.logs.max()])
        return FittedScalingModel(self.name, encoder, crosses, laws, shares, correction, bent, error, limits)

    def load(self, state: State) -> FittedScalingModel:
        """Return the fitted law that ``dump`` gave."""
        laws = tuple(self.form.fitted.load(unnest(f"law{i}", state)) for i in range(len(state["shares"])))
        return FittedScalingModel.load(state, laws=lambda _: laws)


class _Task(Frozen):
    """One fitting task: a form on a table with encoded rows ``x``."""

    form: ModelForm
    encoder: FeatureEncoding
    crosses: IntArray
    x: Array
    table: tables.SampleTable
    seed: int
    steady: bool

    @property
    def u(self) -> Array:
        return _logs(self.x, self.encoder, self.crosses)

    def expect(self, logs: Array, use: Mask) -> tuple[Array, float]:
        """Return the expectation for every row from fits on the rows in ``use``, and the deviation."""
        laws, shares, sigma = self.laws(logs, use)
        return np.asarray(shares @ _form_logs(laws, self.u, np.zeros(len(logs))), np.float64), sigma

    def alternate(self, logs: Array, *, rounds: int) -> tuple[tuple[FittedForm, ...], Array, UnitTimeCorrection | None]:
        """Return fits, posterior shares and a correction, each fitted to the residuals of the other."""
        every, none = np.ones(len(logs), bool), np.zeros(len(logs))
        more, correction = none, None
        laws, shares, _ = self.laws(logs, every)
        for _ in range(rounds):
            plain = shares @ _form_logs(laws, self.u, none)
            share = np.minimum(np.exp(laws[int(shares.argmax())].halves(self.u)[1] - plain), 1.0)
            again = corrections.fit_unit_time_correction(
                self.x, logs - plain, share, self.table, self.encoder, self.seed
            )
            if again is None:
                break
            correction, more = again, share * again.at(self.x)[0]
            laws, shares, _ = self.laws(logs - more, every)
        return laws, shares, correction

    def laws(self, logs: Array, use: Mask) -> tuple[tuple[FittedForm, ...], Array, float]:
        """Return the likely fits on the rows in ``use``, their posterior shares, and the deviation."""
        at = _sample_rows(self.table, self.form.largest, self.seed)
        at = at[use[at]]
        weight, none = self.table.weight[at], np.zeros(len(self.crosses), bool)
        carries = np.concatenate([self.encoder.scales.astype(bool), none])
        no = np.zeros(len(carries), bool)
        problem = FormProblem(
            self.u[at],
            logs[at],
            weight / weight.mean(),
            no if self.steady else carries,
            np.concatenate([~np.isnan(self.encoder.stretch), none]),
            np.concatenate([np.zeros(len(self.encoder.scales), bool), ~none]),
            carries if self.steady else no,
        )
        return _weigh_fits(self.form.fit(problem, self.seed))


def _weigh_fits(fits: list[FormFit]) -> tuple[tuple[FittedForm, ...], Array, float]:
    """Return the fits of some evidence, their posterior shares, and the deviation of the best."""
    evidence = np.array([fit.evidence for fit in fits])
    shares = np.exp(evidence - evidence.max())
    kept = np.flatnonzero(shares > 0.01 * shares.sum())
    sigma = float(np.median(fits[int(evidence.argmax())].sigma))
    return tuple(fits[i].law for i in kept), shares[kept] / shares[kept].sum(), sigma


def _form_logs(laws: tuple[FittedForm, ...], u: Array, more: Array) -> Array:
    """Return the logarithms that each law gives (laws, n), with ``more`` added to that of the work."""
    halves = [law.halves(u) for law in laws]
    return np.stack([np.logaddexp(startup, work + more) for startup, work in halves])


def _logs(x: Array, encoder: FeatureEncoding, crosses: IntArray) -> Array:
    """Return the inputs of the forms: columns, and products that vary exponents of scale."""
    # The stretch of a standardised column makes its weight an exponent.
    plain = x * np.where(np.isnan(encoder.stretch), 1.0, encoder.stretch)
    return np.column_stack([plain, x[:, crosses[:, 0]] * plain[:, crosses[:, 1]]])


def _crosses(x: Array, encoder: FeatureEncoding) -> IntArray:
    """Return pairs of a category column and a scale column, fewest values first."""
    values = [len(np.unique(column)) for column in x.T]
    names = np.isnan(encoder.stretch) & ~encoder.scales.astype(bool)
    few = [i for i, count in enumerate(values) if 1 < count <= FEW_VALUES and names[i]]
    pairs = [(i, j) for i in sorted(few, key=lambda i: values[i]) for j in np.flatnonzero(encoder.scales)]
    return np.array(pairs[:MOST_CROSSES], np.int64).reshape(-1, 2)


def _sample_rows(table: tables.SampleTable, most: int, seed: int) -> IntArray:
    """Return at most ``most`` random rows, up to half of them at full scale."""
    order = np.random.default_rng(seed).permutation(len(table))
    large = order[table.full_scale[order]][: max(most // 2, most - int((~table.full_scale).sum()))]
    small = order[~table.full_scale[order]][: most - len(large)]
    return np.sort(np.concatenate([large, small]))
