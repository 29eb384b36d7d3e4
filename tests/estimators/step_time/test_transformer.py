"""A law of training steps: what it must obey whatever it learned, and what it finds of steps made by a known law."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.shipped.transformer_fitting import fit_transformer_steps, model_flops
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import Sharding
from leadline.estimators.step_time.transformer import COEFFICIENTS, TransformerStep, TransformerStepModel, step_terms

pytest.importorskip("scipy")

A100, H100 = (TomlCatalog().device(name) for name in ("A100 SXM4 80GB", "H100 SXM5 80GB"))


def step(width=4096, layers=32, **changes):
    weights = 12.0 * layers * width**2
    usual = TransformerStep(
        A100, 8, layers, width, 50_000, weights, weights + 50_000 * width, 2048, 4, node_bytes_per_s=200e9
    )
    return replace(usual, **changes)


def grid(device=A100):
    return [
        step(width, layers, device=device, gpus=gpus, nodes=max(1, gpus // 8), sequence=sequence, microbatch=batch)
        for width, layers in ((1024, 24), (2048, 24), (4096, 32))
        for gpus in (8, 16, 32)
        for sequence, batch in ((512, 16), (1024, 8), (2048, 2))
    ]


def made_s(one, efficiency=0.6):
    """The truth of these tests: a constant share of the peak for what the model needs, and a constant."""
    return model_flops(one) / (efficiency * one.device.peak_flops_per_s["bfloat16"]) + 0.01


@pytest.fixture(scope="module")
def law():
    return fit_transformer_steps(grid(), [made_s(case) for case in grid()])


def test_steps_of_a_known_model_are_fitted_within_a_few_percent(law):
    found = law.predict(grid()).point / [made_s(case) for case in grid()]
    assert np.abs(found - 1).mean() < 0.02


def test_larger_steps_than_any_learned_are_met_as_well(law):
    large = [step(6144, 40, sequence=4096, gpus=64, nodes=8), step(4096, 32, sequence=8192, microbatch=1)]
    found = law.predict(large).point / [made_s(case) for case in large]
    assert np.abs(found - 1).max() < 0.2


def test_half_the_time_on_all_steps_is_half_the_answer(law):
    half = fit_transformer_steps(grid(), [made_s(case) / 2 for case in grid()])
    assert half.predict([step()]).point[0] / law.predict([step()]).point[0] == pytest.approx(0.5, abs=0.05)


@settings(max_examples=30)
@given(st.integers(3, 10), st.integers(1, 32), st.integers(1, 8), st.booleans())
def test_more_work_for_each_gpu_never_takes_less(power, batch, times, again):
    case = step(sequence=2**power * 32, microbatch=batch, checkpointing=again)
    small, large = step_terms([case]), step_terms([replace(case, microbatch=batch * times)])
    for name in ("products_s", "attention_s", "activations_s", "logits_s"):
        assert small[name][0] <= large[name][0]


def test_recomputing_activations_repeats_the_forward_products():
    plain, again = step_terms([step()]), step_terms([step(checkpointing=True)])
    assert again["products_s"][0] / plain["products_s"][0] == pytest.approx(8 / 6)


def test_attention_grows_with_the_square_of_the_sequence():
    short, long = (step_terms([step(sequence=s, microbatch=1)])["attention_s"][0] for s in (32_768, 65_536))
    assert long / short == pytest.approx(4, rel=0.02)


def test_attention_of_fused_kernels_gains_less_than_the_peak_on_the_next_generation():
    ours = step_terms([step(), step(device=H100)])
    gain = ours["attention_s"][0] / ours["attention_s"][1]
    assert 1.5 < gain < 1.7 < ours["products_s"][0] / ours["products_s"][1]


def test_full_sharding_gathers_once_more_than_sharded_gradients():
    full, gradients = (
        step_terms([step(gpus=64, nodes=8, reduced_bytes=2, sharding=case)])["transfer_s"][0]
        for case in (Sharding.FULL, Sharding.GRADIENTS)
    )
    assert full / gradients == pytest.approx(3 / 2)


def test_one_gpu_exchanges_nothing():
    alone = step_terms([step(gpus=1)])
    assert (alone["transfer_s"][0], alone["hops_s"][0]) == (0.0, 0.0)


def test_more_nodes_cost_more_hops():
    hops = [step_terms([step(gpus=8 * nodes, nodes=nodes)])["hops_s"][0] for nodes in (1, 2, 8, 64)]
    assert sorted(hops) == hops


def test_an_unseen_generation_has_a_wider_spread(law):
    seen, unseen = law.predict([step(), step(device=H100)]).spread
    assert seen < unseen


def test_the_residual_process_vanishes_far_from_the_training_steps():
    """Noise of a tenth on the learned steps must not move a step that is a hundred times as large."""
    rng = np.random.default_rng(0)
    noisy = fit_transformer_steps(grid(), [made_s(case) * float(np.exp(rng.normal(0, 0.1))) for case in grid()])
    far = step(16_384, 96, gpus=1024, nodes=128)
    assert noisy.predict([far]).point[0] == pytest.approx(made_s(far), rel=0.25)


@pytest.mark.parametrize(
    "far",
    [
        {"layers": 3200, "block_weights": 1200.0 * 32 * 4096**2, "parameters": 1200.0 * 32 * 4096**2},
        {"gpus": 1_000_000, "nodes": 125_000},
        {"sequence": 2**20, "microbatch": 1},
    ],
)
def test_a_hundredfold_extrapolation_has_a_far_wider_spread(law, far):
    """100 times the layers and weights, a million GPUs, 512 times the tokens: nothing measured tells of these."""
    near, beyond = law.predict([step()]), law.predict([step(**far)])
    assert beyond.spread[0] > max(5 * near.spread[0], 0.2)
    assert near.extrapolation[0] == 0 < np.log(32) < beyond.extrapolation[0]


def test_only_the_generation_is_untested(law):
    untested = law.untested_spread([step(), step(device=H100)])
    assert untested[0] == 0 < untested[1]


def test_the_parts_say_where_the_time_goes(law):
    parts = law.parts([step(sequence=512), step(sequence=32_768, microbatch=1)])
    share = parts["attention"] / parts["products"]
    assert share[0] < share[1]
    assert set(parts) == {"products", "head", "attention", "activations", "logits", "exchange"}


def test_the_state_restores_the_same_model(law):
    again = TransformerStepModel.load(law.dump())
    asked = [step(), step(device=H100, gpus=512, nodes=64, dtype="float8")]
    for name in ("point", "spread", "extrapolation"):
        assert getattr(law.predict(asked), name).tolist() == getattr(again.predict(asked), name).tolist()
    assert len(COEFFICIENTS) == len(again.theta)


def test_few_steps_a_time_of_nothing_and_a_device_without_figures_are_refused():
    with pytest.raises(InvalidInput, match="3 measured steps are too few"):
        fit_transformer_steps(grid()[:3], [1.0, 1.0, 1.0])
    with pytest.raises(InvalidInput, match="took 0 s"):
        fit_transformer_steps(grid(), [0.0] * len(grid()))
    with pytest.raises(InvalidInput, match="A100 SXM4 80GB has no float8 peak"):
        step_terms([step(dtype="float8")])
    with pytest.raises(InvalidInput, match="X lacks its memory bandwidth"):
        step_terms([step(device=Device("X", "nvidia", DeviceKind.GPU, peak_flops_per_s={"bfloat16": 1e12}))])
    with pytest.raises(InvalidInput, match="give every size as 1 or more"):
        step_terms([step(microbatch=0)])
