"""The cluster that the tests of Slurm share, and the order of the test files."""

import os
import sys
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, settings

# OpenBLAS and PyTorch start a thread for each core, and on arrays as small as these the threads wait for each other:
# fitting one model took 29 s of processor time in place of 8 s. They read these variables when they are imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A model of few runs is fitted sooner than a second process has imported scikit-learn.
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")

from tests.support.forked_python import run_forked
from tests.support.slurm_cluster import slurm_cluster, why_no_slurm

# On a busy machine an example takes as long as it takes.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# The contracts are tests inside the package: a failing one then tells its values, too.
pytest.register_assert_rewrite("leadline.testing")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Start a Slurm, or skip the test with the reason why there can be none."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def slurm(cluster, monkeypatch):
    """Reach the cluster from this process, with Leadline where its nodes find it."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    return cluster


@pytest.fixture
def open_umask():
    """Let everybody use what is made from now on, unless its maker restricts it."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def forked_traces(monkeypatch):
    """Let Leadline's verbs in this process trace in forks, which need not import torch."""
    monkeypatch.setattr("leadline.app.composition.run_process", run_forked)


def pytest_collection_modifyitems(items):
    """Begin with the files of the slowest tests, so that no worker is left alone with one at the end.

    Within these, names mix the rooms: the tests of Slurm wait, and beside them others need the processors.
    """
    longest_s = defaultdict(float)
    for item in items:
        limit, is_slow = item.get_closest_marker("timeout"), item.get_closest_marker("slow") is not None
        longest_s[item.path] = max(longest_s[item.path], limit.args[0] if limit else float(is_slow))
    items.sort(key=lambda item: (-longest_s[item.path], item.path.name, item.path))
