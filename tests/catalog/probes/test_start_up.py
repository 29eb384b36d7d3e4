"""Memory and time of a fresh Python are measured in that Python."""

import sys

from leadline.catalog.probes.start_up import start_up_figures
from leadline.execution.processes import run_process


def test_a_python_with_torch_has_bytes_and_seconds():
    figures = start_up_figures(run_process, [sys.executable])
    assert 1e6 < figures["interpreter_bytes"] < figures["framework_bytes"]
    assert 0 < figures["first_pass_bytes"] <= figures["first_step_bytes"]
    assert 0.1 < figures["framework_import_s"] < 60
    assert 0 <= figures["compiler_s"] < figures["first_step_s"] < 60
    assert 0 <= figures["compiler_bytes"] < figures["first_step_bytes"]


def test_a_python_without_torch_has_no_figures():
    assert start_up_figures(run_process, [sys.executable, "-S"]) == {}
