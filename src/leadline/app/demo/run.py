"""The whole path on three real training jobs: calibrate, estimate, recommend, run here, and compare."""

import sys
from collections.abc import Callable
from pathlib import Path

from leadline.app.composition import reload_catalog, toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.recommend import recommend
from leadline.app.jobs.job_request import JobRequest, build_job_spec
from leadline.app.jobs.submit import raise_if_failed, run_locally
from leadline.app.machines.targets import LOCAL
from leadline.app.machines.this_machine import calibrate
from leadline.app.workloads.read import read_workload
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device
from leadline.core.recommendation import Constraints, Recommendation
from leadline.core.runs import Run

DEMO_JOBS = ("digits_cnn", "tumour_mlp", "text_transformer")
"""Training scripts beside this module; each trains on data that scikit-learn carries."""

DEMO_SYSTEMS = ("Pitzer", "Expanse", "Lonestar6")
"""The systems for which a configuration is recommended."""

CALIBRATION_S = 60.0


class DemoJob(Frozen):
    """One job of the demo: what to ask for elsewhere, and its run here with what was predicted."""

    name: str
    recommendations: dict[str, Recommendation]
    run: Run


def calibrate_here(say: Callable[[str], None], budget_s: float = CALIBRATION_S) -> Device:
    """Measure this machine and keep the record in the user's catalog, where the estimates find it."""
    say("Calibrating this machine …")
    device = calibrate(device_type="cpu", budget_s=budget_s, progress=lambda *_: None)
    reload_catalog()
    return device


def run_demo_job(name: str, say: Callable[[str], None]) -> DemoJob:
    """Predict one job from its unmodified script, recommend places for it, run it here, and keep the run.

    Raises:
        MissingExtra, Untraceable: torch is not installed, or the script could not be traced.
        JobFailed: the job itself failed.
    """
    command = [sys.executable, str(Path(__file__).parent / "jobs" / f"{name}.py")]
    workload = read_workload(command)
    say(f"{name}: reading the script without running it …")
    answer = estimate(workload, toolbox(), on=[LOCAL])
    recommendations = {site: recommend(workload, toolbox(), Constraints(), on=[site]) for site in DEMO_SYSTEMS}
    say(f"{name}: running it here, measured …")
    spec = build_job_spec(JobRequest(tuple(command), name=name))
    run = run_locally(spec, predicted=answer.estimates[0], output=sys.stderr.fileno())
    raise_if_failed(run)
    return DemoJob(name, recommendations, run)
