"""A few own steps find the level of a device, or its own law, and say honestly how unsure that is."""

import numpy as np
import pytest

from leadline.core.errors import InvalidInput
from leadline.core.graph import OpGraph, Stage
from leadline.estimators.step_time.adaptation import (
    LEAST_STEPS,
    MeasuredSteps,
    ScaledKernels,
    adapt_by_factor,
    adapt_op_utilization,
)
from leadline.estimators.step_time.op_utilization_kernels import (
    OpUtilizationKernels,
    OpUtilizationModels,
    SettingModel,
    StepSetting,
)
from leadline.estimators.step_time.roofline import RooflineKernels
from tests.estimators.step_time.test_op_utilization_kernels import KNOWN, NEW, SEEN, add, conv, law


@pytest.fixture
def laws():
    place = StepSetting.read("Known|inference|nchw|2.4")
    return OpUtilizationModels({place: SettingModel(law(0.0), 0.5, SEEN, place.device)})


def graphs(count):
    return [OpGraph((conv(64 * (1 + n % 4)), add(64 * (1 + n % 3)), conv(128)) * (1 + n)) for n in range(count)]


def runs_of(said, factor, noise=0.0, count=12):
    dice = np.random.default_rng(3)
    step_s = np.array(said) * factor * np.exp(noise * dice.standard_normal(count))
    return MeasuredSteps(graphs(count), step_s, [f"model {n % 6}" for n in range(count)])


def test_a_factor_is_found_and_its_error_is_that_of_models_left_out():
    said = np.array([RooflineKernels(KNOWN).step_s(case) for case in graphs(12)])
    found = adapt_by_factor("specs", said, runs_of(said, 1.8))
    assert found.factor == pytest.approx(1.8, rel=0.02)
    assert found.error_before == pytest.approx(1 - 1 / 1.8, abs=0.01)
    assert found.error < 0.03
    assert found.runs == 12
    assert found.laws is None


def test_a_factor_of_noisy_steps_has_the_spread_of_the_noise():
    said = np.array([RooflineKernels(KNOWN).step_s(case) for case in graphs(12)])
    spreads = [adapt_by_factor("specs", said, runs_of(said, 1.3, noise)).spread for noise in (0.05, 0.2)]
    assert 0.03 < spreads[0] < 0.12 < spreads[1] < 0.4


def test_fewer_runs_of_the_same_noise_are_less_sure():
    said = np.array([RooflineKernels(KNOWN).step_s(case) for case in graphs(12)])
    many = runs_of(said, 1.3, 0.1)
    few = many.at(np.arange(LEAST_STEPS))
    assert adapt_by_factor("specs", said[:LEAST_STEPS], few).spread > 0.5 * adapt_by_factor("specs", said, many).spread


def test_the_model_learns_more_than_a_factor(laws):
    """On this device convolutions are twice as slow as the law has them, and additions are not."""
    truth = OpUtilizationKernels(laws, NEW, graphs(1)[0], devices={"Known": KNOWN}.get)
    slow = [sum(s * (2 if op.kind == "conv" else 1) for op, s in zip(case.ops, truth.ops_s(case.ops), strict=True))
            for case in graphs(12)]  # fmt: skip
    runs = MeasuredSteps(graphs(12), np.array(slow), [f"model {n % 6}" for n in range(12)])
    found = adapt_op_utilization(laws, NEW, runs, {"Known": KNOWN}.get)
    assert found.error < 0.08 < found.error_before
    assert found.laws is not None
    assert {NEW.name} == {case.device for case in found.laws.models}
    own = OpUtilizationKernels(found.laws, NEW, graphs(1)[0], devices={"Known": KNOWN}.get, spread=found.spread)
    assert own.step_s(graphs(12)[3]) == pytest.approx(slow[3], rel=0.1)


def test_the_model_refuses_an_unlearned_phase(laws):
    runs = MeasuredSteps([OpGraph((conv(stage=Stage.BACKWARD),))] * 5, np.ones(5), list("abcde"))
    with pytest.raises(InvalidInput, match="no training steps were measured"):
        adapt_op_utilization(laws, NEW, runs, {"Known": KNOWN}.get)


def test_scaled_kernels_scale_all_times_and_report_their_spread():
    plain = RooflineKernels(KNOWN)
    graph = graphs(1)[0]
    model = ScaledKernels(plain, 2.0, 0.05, ("own steps",))
    assert model.step_s(graph) == pytest.approx(2 * plain.step_s(graph))
    assert model.ops_s(graph.ops) == pytest.approx([2 * ops_ for ops_ in plain.ops_s(graph.ops)])
    assert model.launch_s(graph.ops[0]) == pytest.approx(2 * plain.launch_s(graph.ops[0]))
    assert (model.spread_of(graph), ScaledKernels(plain, 2.0).spread_of(graph)) == (0.05, 0.40)
    assert model.name == "maker's figures, adapted"
