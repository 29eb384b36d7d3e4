"""Slurm 24.11 behaves for Leadline as the installed Slurm does: the same tests pass in its mount namespace."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.newer_slurm import NEWER_RELEASE, slurm_version, why_no_newer_slurm, with_newer_slurm

HERE = Path(__file__).parent
WHY_NOT = why_no_newer_slurm() or ("this is the newer Slurm" if slurm_version() >= NEWER_RELEASE else "")
PLANE = "../../plane/"
CHAINS = "test_segments.py::test_chains_of_four_segments_end_at_the_last_step_on_slurm"
FILES = ("test_slurm_contract.py", "test_witnesses.py", f"{PLANE}test_causes_on_slurm.py", f"{PLANE}{CHAINS}")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_newer_slurm()), reason=why_no_newer_slurm()),
    pytest.mark.skipif(
        why_no_newer_slurm() == "" and slurm_version() >= NEWER_RELEASE, reason="this is the newer Slurm"
    ),
]


def python(*arguments):
    command = with_newer_slurm([sys.executable, *arguments])
    return subprocess.run(command, cwd=HERE.parents[3], capture_output=True, text=True, check=False)


def test_the_namespace_has_the_newer_release():
    answer = python("-c", "from tests.support.newer_slurm import slurm_version; print(slurm_version())")
    assert answer.stdout.startswith(NEWER_RELEASE), answer.stderr


@pytest.mark.timeout(2400)  # they wait the most of all
@pytest.mark.parametrize("name", FILES)
def test_the_tests_of_the_adapter_pass(name):
    answer = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / name))
    assert answer.returncode == 0, answer.stdout[-4000:] + answer.stderr[-1000:]
    assert " passed" in answer.stdout
    assert " skipped" not in answer.stdout, answer.stdout[-2000:]
