"""Intervals of training steps: those within what was learned, and those beyond it."""

from dataclasses import replace

import numpy as np
import pytest

from leadline.catalog.read import TomlCatalog
from leadline.estimators.transformer_step import fit
from leadline.estimators.transformer_terms import TransformerStep, generation_of
from leadline.training.step_model import ALL, BEYOND, StepModel, fit_steps, load
from leadline.uncertainty.absolute import Scores

pytest.importorskip("scipy")

A100 = TomlCatalog().device("A100 SXM4 80GB")
LONG = 16_384


def step(width, layers, gpus, sequence, microbatch):
    weights = 12.0 * layers * width**2
    return TransformerStep(
        A100, gpus, layers, width, 50_000, weights, weights + 50_000 * width, sequence, microbatch,
        interconnect="8x 200 Gb/s", nodes=max(1, gpus // 8),
    )  # fmt: skip


STEPS = [
    step(width, layers, gpus, sequence, batch)
    for width, layers in ((1024, 24), (2048, 24), (4096, 32))
    for gpus in (8, 16, 32)
    for sequence, batch in ((512, 16), (1024, 8), (2048, 2))
]
SECONDS = np.array([one.model_flops / (0.6 * A100.peak_flops_per_s["bfloat16"]) + 0.01 for one in STEPS])
WITHIN, OUTSIDE = STEPS[13], replace(STEPS[13], sequence=LONG, microbatch=1)


@pytest.fixture(scope="module")
def law():
    return fit(STEPS, SECONDS.tolist())


def scores(error):
    return Scores.of([error] * 30, [1.0] * 30)


def half(model, one):
    point, _, high = model.predict([one], 0.9)
    return float(np.log(high[0] / point[0])) / float(model.law.predict([one]).spread[0])


def test_errors_of_extrapolations_speak_for_steps_beyond_and_no_others(law):
    model = StepModel(law, {ALL: scores(2.0), ALL + BEYOND: scores(0.5)})
    assert pytest.approx(2.0) == half(model, WITHIN)
    assert pytest.approx(0.5) == half(model, OUTSIDE)


def test_scores_of_the_own_generation_come_before_those_of_all(law):
    own = generation_of(A100)
    model = StepModel(law, {ALL: scores(2.0), ALL + BEYOND: scores(0.5), own: scores(3.0), own + BEYOND: scores(4.0)})
    assert pytest.approx(3.0) == half(model, WITHIN)
    assert pytest.approx(4.0) == half(model, OUTSIDE)


def test_a_model_without_extrapolations_answers_beyond_by_all_its_scores(law):
    assert pytest.approx(2.0) == half(StepModel(law, {ALL: scores(2.0)}), OUTSIDE)


def test_extrapolations_that_were_tried_are_kept_apart_and_come_back_as_they_were():
    gpus, length = (np.array([getattr(one, name) for one in STEPS]) for name in ("gpus", "sequence"))
    tries = [(gpus <= 8, gpus > 8), (length <= 512, length > 512)]
    seconds = SECONDS * np.exp(np.random.default_rng(0).normal(0, 0.02, len(STEPS)))
    model = fit_steps(STEPS, seconds, [str(number) for number in range(len(STEPS))], tries)
    assert {ALL, ALL + BEYOND} <= set(model.scores)
    assert len(model.scores[ALL + BEYOND].scores) >= 36
    again = load(model.dump())
    for one in (WITHIN, OUTSIDE):
        assert pytest.approx(half(model, one)) == half(again, one)
