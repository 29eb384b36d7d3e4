"""The loop's facts, read after three steps, against what the whole script then really did."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.corpus import CORPUS

SOURCES = Path(__file__).parents[4] / "src"
PLAIN = [script for script in CORPUS if not script.processes and not script.missing()]

pytestmark = pytest.mark.timeout(1800)  # every script runs to its end


@pytest.fixture(scope="module")
def really(tmp_path_factory):
    """Run every script that one process can run, to its end, and return what was true and what was said."""
    jobs = [[script.name, str(script.path), list(script.argv)] for script in PLAIN]
    process = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_really.py")), str(SOURCES), json.dumps(jobs)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path_factory.mktemp("scripts"),
    )
    return {run["name"]: run for run in map(json.loads, process.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("script", PLAIN, ids=lambda script: script.name)
def test_the_facts_after_three_steps_agree_with_the_table_and_the_whole_run(really, script):
    run = really[script.name]
    assert run["status"] == 0, run["output"]
    facts = run["facts"]
    inferred = {
        "batch": facts.get("batch"),
        "steps_per_epoch": facts["steps_per_epoch"],
        "epochs": facts["epochs"],
        "accumulation": facts["accumulation"],
        "samples": facts.get("samples"),
        "evaluation_batches": facts["evaluation_batches_per_epoch"],
    }
    if script.samples is None:  # calls of the model without a loader are not counted by these hooks
        del inferred["evaluation_batches"]
    assert {name: getattr(script, name) for name in inferred} == inferred
    assert facts["parameters"] in (script.parameters, script.parameters + script.frozen)  # an average may be trainable
    assert facts["notes"]
    total = script.steps_per_epoch * script.epochs
    assert run["steps"] <= total if script.stops_early else run["steps"] == total


def test_bytes_of_a_sample_are_those_of_the_collated_batch(really):
    assert really["digits_cnn"]["facts"]["bytes_per_sample"] == 8 * 8 * 4 + 8
    assert really["unet"]["facts"]["bytes_per_sample"] == 3 * 64 * 64 * 4 + 64 * 64 * 8


def test_workers_optimizer_and_precision_are_read_from_the_script(really):
    facts = really["resnet_amp"]["facts"]
    assert (facts["loader_workers"], facts["optimizer"], facts["precision"]) == (2, "momentum", "amp-bf16")
    assert really["word_lm"]["facts"]["optimizer"] == "sgd"
    assert any("by hand" in note for note in really["word_lm"]["facts"]["notes"])
