"""The whole path on three real training jobs: calibrate, estimate, recommend, run here, and compare."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from leadline.app.calibrate import calibrate
from leadline.app.composition import toolbox
from leadline.app.estimate import EstimateAnswer, estimate
from leadline.app.places import LOCAL
from leadline.app.recommend import recommend
from leadline.app.submit import Request, check_ended_well, job_spec, run_here
from leadline.app.workloads import read_workload
from leadline.core.estimate import Estimate
from leadline.core.hardware import Device
from leadline.core.recommendation import Constraints, Recommendation
from leadline.core.runs import Run

JOBS = ("digits_cnn", "tumour_mlp", "text_transformer")
"""Training scripts beside this module; each trains on data that scikit-learn carries."""

SITES = ("Pitzer", "Expanse", "Lonestar6")
"""The systems for which a configuration is recommended."""

CALIBRATION_S = 60.0


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job of the demo: what was predicted, what to ask for elsewhere, and what was measured here."""

    name: str
    answer: EstimateAnswer
    recommendations: dict[str, Recommendation]
    run: Run

    @property
    def predicted(self) -> Estimate:
        """Return the estimate for this machine."""
        return self.answer.estimates[0]


def calibrate_here(say: Callable[[str], None], budget_s: float = CALIBRATION_S) -> Device:
    """Measure this machine and keep the record in the user's catalog, where the estimates find it."""
    say("Calibrating this machine …")
    device = calibrate(device_type="cpu", budget_s=budget_s, progress=lambda *_: None)
    toolbox.cache_clear()
    return device


def run_job(name: str, say: Callable[[str], None], history: Path | None = None) -> DemoJob:
    """Predict one job from its unmodified script, recommend places for it, run it here, and keep the run.

    Raises:
        MissingExtra, Untraceable: torch is not installed, or the script could not be traced.
        JobFailed: the job itself failed.
    """
    command = [sys.executable, str(Path(__file__).parent / "demo_jobs" / f"{name}.py")]
    workload = read_workload(command)
    say(f"{name}: reading the script without running it …")
    answer = estimate(workload, toolbox(), on=[LOCAL])
    recommendations = {site: recommend(workload, toolbox(), Constraints(), on=[site]) for site in SITES}
    say(f"{name}: running it here, measured …")
    spec = job_spec(command, LOCAL, Request(name=name))
    run = run_here(spec, predicted=answer.estimates[0], output=sys.stderr.fileno(), history=history)
    check_ended_well(run)
    return DemoJob(name, answer, recommendations, run)
