"""Fit a law's parameters and what each device is apart in, by damped Gauss-Newton on robust log errors."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.estimators.learned.boards import Placed
from leadline.estimators.learned.kernel_law import Law, together_s
from leadline.estimators.tabular.ports import Array

Whole = npt.NDArray[np.int64]

SCALE = 0.15
"""Log error from which on a kernel counts less than its square (pseudo-Huber)."""
APART = np.array([0.35, 0.2, 0.2])
"""Standard deviations, over devices, of ln launch, ln arithmetic and ln traffic against the law's."""
STEP = 1e-4
MOST_STEPS = 30


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """Parameters (p,), and effects (g, 3) of the groups that the kernels were measured in."""

    at: Array
    effects: Array


@dataclass(frozen=True, slots=True)
class Measured:
    """n measured kernels: seconds, whether the launch is part of them (0 or 1), the groups (n, 3) of their effects.

    ``corrected`` is what trees add to the logarithm of the law's kernel, and ``weight`` the kernels that a row counts
    for.
    """

    placed: Placed
    seconds: Array
    launched: Array
    groups: Whole
    corrected: Array
    weight: Array


def fit_law(law: Law, measured: Measured, *, fixed: Array | None = None, apart: Array = APART) -> FittedLaw:
    """Return the likeliest parameters and effects under normal priors; with ``fixed`` parameters, the effects alone.

    The misfit of each group is divided by its number of kernels, so that no device outweighs the others by its rows.
    """
    start = np.array(law.start) if fixed is None else fixed
    many = int(measured.groups.max()) + 1
    problem = _Problem(law, measured, start, many, apart, fixed is None)
    return _descended(problem, np.concatenate([start, np.zeros(3 * many)]))


@dataclass(frozen=True, slots=True)
class _Problem:
    law: Law
    measured: Measured
    start: Array
    groups: int
    apart: Array
    free: bool

    def errors(self, x: Array) -> Array:
        """Return ln(measured ÷ law) of each kernel."""
        p = len(self.start)
        effects = x[p:].reshape(self.groups, 3)
        own = np.stack([effects[self.measured.groups[:, i], i] for i in range(3)], axis=1)
        kernel_s, launch_s = self.law.parts(self.measured.placed, x[:p], own)
        found = together_s(kernel_s * np.exp(self.measured.corrected), self.measured.launched * launch_s, self.law.wait)
        log: Array = np.log(self.measured.seconds / found)
        return log

    def prior(self, x: Array) -> Array:
        p = len(self.start)
        return np.concatenate(
            [(x[:p] - self.start) / np.array(self.law.loose), (x[p:].reshape(-1, 3) / self.apart).ravel()]
        )

    def cost(self, errors: Array, x: Array) -> float:
        robust = 2 * (np.sqrt(1 + (errors / SCALE) ** 2) - 1)
        return float(self.measured.weight @ robust + np.sum(self.prior(x) ** 2))

    def slopes(self, x: Array, errors: Array) -> Array:
        """Return the Jacobian (n, p + 3 g); one evaluation serves the same effect of all groups."""
        p, n = len(self.start), len(errors)
        jacobian = np.zeros((n, len(x)))
        if self.free:
            for i in range(p):
                moved = x.copy()
                moved[i] += STEP
                jacobian[:, i] = (self.errors(moved) - errors) / STEP
        for i in range(3):
            moved = x.copy()
            moved[p + i :: 3] += STEP
            jacobian[np.arange(n), p + 3 * self.measured.groups[:, i] + i] = (self.errors(moved) - errors) / STEP
        return jacobian


def _descended(problem: _Problem, x: Array) -> FittedLaw:
    p = len(problem.start)
    scale = np.concatenate([problem.law.loose, np.tile(problem.apart, problem.groups)])
    errors = problem.errors(x)
    cost, damping = problem.cost(errors, x), 1e-2
    for _ in range(MOST_STEPS):
        jacobian = problem.slopes(x, errors)
        weight = problem.measured.weight / (SCALE**2 * np.sqrt(1 + (errors / SCALE) ** 2))
        normal = (jacobian.T * weight) @ jacobian + np.diag(scale**-2)
        slope = (jacobian.T * weight) @ errors + problem.prior(x) / scale
        before = cost
        for _ in range(8):
            step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), slope)
            tried = x + np.clip(step, -1.0, 1.0)
            found = problem.errors(tried)
            reached = problem.cost(found, tried)
            if reached < cost:
                x, errors, cost, damping = tried, found, reached, damping / 4
                break
            damping *= 5
        if before - cost < 1e-4 * before:
            break
    return FittedLaw(x[:p], x[p:].reshape(-1, 3))
