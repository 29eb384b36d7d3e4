"""The trace bench: what it counts as wrong, how it sums memory, and one script really measured both ways."""

import dataclasses

import pytest

from benchmarks import trace
from benchmarks.corpus import CORPUS
from leadline.core.graph import LoopFacts, OpGraph, TracedJob

VAE = next(script for script in CORPUS if script.name == "vae")
RIGHT = TracedJob(
    OpGraph((), parameters=VAE.parameters),
    LoopFacts(batch=128, steps_per_epoch=12, epochs=2, samples=1500, evaluation_batches_per_epoch=3, loader_workers=1),
)


def test_a_trace_that_says_the_truth_has_no_wrong_fact():
    assert trace.wrong_facts(VAE, RIGHT) == []


def test_each_wrong_fact_is_named_with_what_was_said():
    said = dataclasses.replace(RIGHT, loop=dataclasses.replace(RIGHT.loop, epochs=3, samples=None))
    assert trace.wrong_facts(VAE, said) == ["epochs: 3, not 2", "samples: None, not 1500"]


@pytest.mark.slow
def test_a_script_is_traced_with_its_facts_right_and_its_peak_measured():
    script = next(script for script in CORPUS if script.name == "digits_cnn")
    found = trace._script(script, repeats=1)
    assert found["traced"], found
    assert found["wrong"] == []
    assert found["trace_s"] > 0
    assert found["bare_s"] > 0
    assert found["real_peak_bytes"] > 4 * script.parameters
