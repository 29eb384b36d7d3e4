"""Applications for the tests of this folder: how long a run takes is a formula, with noise."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.configurations import build_job
from leadline.core.campaigns import (
    Budget,
    BudgetUnit,
    Campaign,
    Configuration,
    Parameter,
    ParameterKind,
    PlannedRun,
    Range,
)
from leadline.core.jobs import JobState
from leadline.core.runs import Measurement, Run, Scale

CLASSIFIER = Campaign(
    name="classifier",
    command=("train", "{dataset}", "{epochs}", "{width}"),
    parameters=(
        Parameter("dataset", ParameterKind.CATEGORICAL, choices=("mnist", "cifar10")),
        Parameter("epochs", ParameterKind.INTEGER, Range(1, 3), Range(10, 60)),
        Parameter("width", ParameterKind.LOG_INTEGER, Range(64, 1024), Range(64, 1024)),
    ),
    cores=(1, 2),
    budget=Budget(1200, BudgetUnit.SECONDS),
    first_run_s=2.0,
)
SOLVER = Campaign(
    name="solver",
    command=("solve", "{n}", "{width}", "{method}"),
    parameters=(
        Parameter("n", ParameterKind.LOG_INTEGER, Range(1_000, 10_000), Range(40_000, 400_000)),
        Parameter("width", ParameterKind.LOG, Range(1.0, 16.0), Range(1.0, 16.0)),
        Parameter("method", ParameterKind.CATEGORICAL, choices=("direct", "iterative")),
    ),
    cores=(1, 2, 4),
    budget=Budget(400, BudgetUnit.SECONDS),
)


def classifier_s(one: Configuration) -> float:
    """Start-up, a load by data set, and epochs of a cost by width that flattens where the width is small."""
    dataset, epochs, width = (one.parameters[name] for name in ("dataset", "epochs", "width"))
    more = 1.0 if dataset == "mnist" else 2.7
    return 1.5 + 0.4 * more + epochs * more * (0.15 + 2e-3 * width**1.1 / (one.resources.cores_per_task or 1) ** 0.7)


def solver_s(one: Configuration) -> float:
    """``a + b · n · log n · w^p ÷ c^q``, with powers of its own for each method."""
    n, width, method = (one.parameters[name] for name in ("n", "width", "method"))
    cores = one.resources.cores_per_task or 1
    if method == "direct":
        return 0.8 + 2e-6 * n * math.log(n) * width**0.6 / cores**0.8
    return 1.1 + 6e-6 * n * math.log(n) * width**0.3 / cores**0.5


class Application:
    """An application with its campaign, whose runs need no waiting: a formula with log-normal noise of ``noise``."""

    def __init__(
        self, campaign: Campaign, seconds: Callable[[Configuration], float], *, noise: float = 0.02, seed: int = 0
    ) -> None:
        self.campaign = campaign
        self.seconds = seconds
        self.noise = noise
        self.draw = random.Random(seed)  # noqa: S311 - noise, no secret
        self.fails: Callable[[Configuration], bool] = lambda _: False

    def with_(self, *, noise: float = 0.02, seed_of_noise: int = 0, **changes: object) -> "Application":
        """Return the application under a changed campaign."""
        return Application(replace(self.campaign, **changes), self.seconds, noise=noise, seed=seed_of_noise)

    def run_of(self, one: Configuration, scale: Scale) -> Run:
        """Return a run of a configuration that nobody planned."""
        return self.run(PlannedRun(self.campaign.name, one, scale))

    def run(self, planned: PlannedRun) -> Run:
        """Return the run as the wrapper would have recorded it."""
        job = build_job(self.campaign, planned)
        elapsed, state = (
            self.seconds(planned.configuration) * math.exp(self.draw.gauss(0, self.noise)),
            JobState.COMPLETED,
        )
        if self.fails(planned.configuration):
            elapsed, state = 0.1, JobState.FAILED
        elif job.resources.walltime_s is not None and elapsed > job.resources.walltime_s:
            elapsed, state = job.resources.walltime_s, JobState.TIMEOUT
        return Run(
            planned.id, job, state, "2026-01-01T00:00:00Z", planned.scale,
            measured={"elapsed_s": Measurement(elapsed, "s", "formula")}, parameters=planned.configuration.parameters,
        )  # fmt: skip

    def cost(self, run: Run) -> float:
        """Return what a run took of the budget."""
        return compute_cost(self.campaign, run.job.resources, run.measured["elapsed_s"].value)


@pytest.fixture
def classifier() -> Application:
    """Return a classifier over data set, epochs, width and cores."""
    return Application(CLASSIFIER, classifier_s)


@pytest.fixture
def solver() -> Application:
    """Return a solver over size, width, method and cores; no guess of its first run."""
    return Application(SOLVER, solver_s)
