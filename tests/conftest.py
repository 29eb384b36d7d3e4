"""The cluster that the tests of Slurm share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "execution"))
from slurm_cluster import missing, slurm_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Start a Slurm, or skip the test with the reason why there can be none."""
    if reason := missing():
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture
def slurm(cluster, monkeypatch):
    """Reach the cluster from this process, with Leadline where its nodes find it."""
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
