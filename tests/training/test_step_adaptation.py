"""Measured steps move the coefficients that they tell, as far as they tell them, and narrow the interval."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from leadline.core.errors import InvalidInput
from leadline.core.workload import Launch
from leadline.estimators.parallelism.step_parts import NAMES, step_seconds
from leadline.estimators.parallelism.training_step import StepTable
from leadline.training.decoder_steps import shipped_step_model
from leadline.training.step_adaptation import (
    AdaptedCoefficients,
    adapt_step_model,
    with_coefficients,
    with_measured_host,
)
from tests.training.test_decoder_steps import STEP, work

MODEL = shipped_step_model()
LAUNCH = NAMES.index("launch_s")
STEPS = [replace(STEP, gpus=1, plan=type(STEP.plan)(), work=replace(work(width), kernels=60.0 * layers))
         for width in (768, 2048, 4096) for layers in (12, 200, 1000)]  # fmt: skip


def seconds_on(changes, steps=STEPS):
    """Return the seconds of steps where coefficients are a multiple of the shipped ones."""
    theta = MODEL.theta + np.log([changes.get(name, 1.0) for name in NAMES])
    return step_seconds(theta, StepTable(steps, MODEL.curves))


def adapted_to(steps, step_s):
    return with_coefficients(MODEL, adapt_step_model(MODEL, steps, step_s))


def width_of(model, step):
    _, low, high = model.predict([step])
    return float(high[0] / low[0])


def test_the_launch_cost_of_a_slow_host_is_found_among_small_and_large_steps():
    coefficients = adapt_step_model(MODEL, STEPS, seconds_on({"launch_s": 4.0}))
    assert coefficients.launch_s == pytest.approx(4.0 * math.exp(MODEL.theta[LAUNCH]), rel=0.1)
    assert coefficients.noise < 0.15


def test_a_slow_device_is_not_taken_for_a_slow_host():
    speed = dict.fromkeys(("products", "flash2", "eager", "head", "optimizer_bytes"), 1.3)
    model = adapted_to(STEPS, seconds_on(speed))
    large, small = STEPS[-3], STEPS[2]
    assert model.seconds([large])[0] == pytest.approx(seconds_on(speed, [large])[0], rel=0.1)
    assert model.theta[LAUNCH] == pytest.approx(MODEL.theta[LAUNCH], abs=0.15)
    assert model.seconds([small])[0] == pytest.approx(seconds_on(speed, [small])[0], rel=0.1)


def test_more_steps_move_the_coefficients_further_and_narrow_the_interval():
    slow_s = seconds_on({"launch_s": 4.0})
    order = [2, 8, 5, 0, 3, 6, 1, 4, 7]
    asked = replace(STEPS[2], work=replace(work(1024), kernels=30_000.0))
    widths, launches = [width_of(MODEL, asked)], [MODEL.theta[LAUNCH]]
    for count in (1, 3, 9):
        model = adapted_to([STEPS[place] for place in order[:count]], slow_s[order[:count]])
        widths.append(width_of(model, asked))
        launches.append(model.theta[LAUNCH])
    assert widths == sorted(widths, reverse=True)
    assert launches == sorted(launches)


def test_steps_that_scatter_leave_a_wider_interval_than_steps_that_agree():
    step_s, scatter = seconds_on({"launch_s": 3.0}), np.exp(0.4 * np.array([1, -1, 1, -1, 1, -1, 1, -1, 1]))
    agreeing, scattered = adapted_to(STEPS, step_s), adapted_to(STEPS, step_s * scatter)
    assert scattered.noise > 1.3 * agreeing.noise
    assert width_of(scattered, STEPS[4]) > 1.1 * width_of(agreeing, STEPS[4])


def test_one_odd_step_of_nine_changes_little():
    step_s = seconds_on({"launch_s": 3.0})
    odd_s = step_s * np.where(np.arange(len(step_s)) == 4, 6.0, 1.0)
    usual, odd = (adapted_to(STEPS, values).seconds(STEPS) for values in (step_s, odd_s))
    assert np.abs(np.log(odd / usual)).max() < 0.15


def test_a_stated_host_takes_its_time_and_a_narrower_interval():
    waiting = replace(STEPS[2], work=replace(work(768), kernels=60_000.0))
    slow, fast = (with_measured_host(MODEL, launch_s) for launch_s in (40e-6, 8e-6))
    assert slow.seconds([waiting])[0] > 3 * fast.seconds([waiting])[0]
    assert width_of(fast, waiting) < 0.7 * width_of(MODEL, waiting)


def test_a_replayed_graph_does_not_depend_on_its_host():
    replayed = replace(STEPS[2], launch=Launch.GRAPHS)
    slow, fast = (with_measured_host(MODEL, launch_s).seconds([replayed])[0] for launch_s in (80e-6, 8e-6))
    assert slow == fast < MODEL.seconds([STEPS[2]])[0]


def test_the_state_holds_the_coefficients_and_refuses_those_of_another_version():
    coefficients = adapt_step_model(MODEL, STEPS[:3], seconds_on({})[:3])
    again = AdaptedCoefficients.load(coefficients.dump())
    again.require_names()
    assert again.theta.tolist() == coefficients.theta.tolist()
    with pytest.raises(InvalidInput, match="coefficients of a training step, not"):
        replace(coefficients, theta=coefficients.theta[1:]).require_names()
