"""What the tests of training share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def quick():
    """Return the estimators that fit at once."""
    from leadline.estimators.tabular.registry import ESTIMATORS

    return {name: ESTIMATORS[name] for name in ("linear", "scaling_law")}


@pytest.fixture(scope="session")
def built(quick):
    """Return a model of a made campaign with what it was made of."""
    from made_runs import campaign

    from leadline.training.build import TrainingOrigin, build_model, infer_command
    from leadline.training.records import TrainingOptions, run_records

    runs = campaign(80, 24)
    origin = TrainingOrigin("runs.csv", "2026-01-02T00:00:00+00:00", "leadline train runs.csv", infer_command(runs))
    options = TrainingOptions(targets=("elapsed_s", "host_memory_bytes"))
    return build_model(run_records(runs), quick, origin, options)
