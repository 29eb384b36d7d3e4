"""The fitted model of training steps: its intervals inside and outside the training data, and its state."""

import numpy as np
import pytest
from msgspec.structs import replace

from leadline.catalog.read import TomlCatalog
from leadline.core.workload import Parallelism, Sharding
from leadline.estimators.parallelism.decoder_work import Cut, DecoderWork, Product
from leadline.estimators.parallelism.training_step import AttentionKernel, TrainingStep
from leadline.estimators.step_time.power_limit import limit_power
from leadline.training.decoder_steps import DecoderStepModel, shipped_step_model, shipped_step_model_errors

A100 = TomlCatalog().device("A100 SXM4 80GB")
WIDTH, LAYERS, TOKENS = 4096, 32, 4096


def work(width=WIDTH, experts=0):
    products = (
        Product(Cut.OUTPUT, TOKENS, 3 * width, width, LAYERS), Product(Cut.INNER, TOKENS, width, width, LAYERS),
        Product(Cut.OUTPUT, TOKENS, 4 * width, width, LAYERS, experts),
        Product(Cut.INNER, TOKENS, width, 4 * width, LAYERS, experts),
        Product(Cut.HEAD, TOKENS, 32000, width, 1),
    )  # fmt: skip
    weights = sum(product.weights for product in products)
    return DecoderWork(
        width=width,
        tokens=TOKENS,
        sequence=TOKENS,
        products=products,
        attention_flops=2.0 * LAYERS * width * TOKENS**2,
        attention_blocks=LAYERS,
        key_width=width,
        scores=0.0,
        stream_bytes=50.0 * LAYERS * TOKENS * width,
        inner_bytes=80.0 * LAYERS * TOKENS * width,
        head_bytes=16.0 * TOKENS * 32000,
        kernels=60.0 * LAYERS,
        parameters=weights,
        trained=weights,
    )


STEP = TrainingStep(work(), A100, 8, gpu_network_bytes_per_s=25e9).with_plan(Parallelism(sharding=Sharding.FULL))


@pytest.fixture(scope="module")
def model():
    return shipped_step_model()


def width(model, step):
    point, low, high = model.predict([step])
    assert 0 < low[0] < point[0] < high[0]
    return float(high[0] / low[0])


def test_a_power_limit_slows_a_step_by_less_than_its_products_and_widens_it(model):
    limited = replace(STEP, device=limit_power(A100, 200))
    slower = model.predict([limited])[0][0] / model.predict([STEP])[0][0]
    assert 1.2 < slower < 2**0.62
    assert width(model, limited) > 1.1 * width(model, STEP)


def test_a_step_like_the_measured_ones_has_an_interval_of_two_thirds_to_three_halves(model):
    assert 1.3 < width(model, STEP) < 2.2
    assert not model.times_outside([STEP]).any()


@pytest.mark.parametrize(
    "change",
    [{"work": work(512)}, {"gpus": 16384}, {"device": replace(A100, architecture="Rubin")}, {"work": work(experts=8)},
     {"device": TomlCatalog().device("MI300X")}, {"device": TomlCatalog().device("A100 PCIe 80GB")},
     {"device": TomlCatalog().device("RTX 3090")}],
    ids=["narrow", "many GPUs", "a new generation", "experts", "another vendor", "a PCIe board", "a desktop GPU"],
)  # fmt: skip
def test_what_was_not_measured_has_a_wider_interval(model, change):
    assert width(model, replace(STEP, **change)) > 1.1 * width(model, STEP)


def test_a_step_that_waits_for_its_host_is_as_uncertain_as_hosts_are(model):
    waits = replace(STEP, work=replace(work(), kernels=100_000.0))
    assert width(model, waits) > 1.2 * width(model, STEP)


def test_a_slow_host_makes_a_step_longer_but_a_fast_one_not_shorter(model):
    nearly = replace(STEP, work=replace(work(), kernels=30_000.0))
    for step, least, most in ((STEP, 1.0, 1.05), (nearly, 1.2, 5.0)):
        point, low, high = (float(values[0]) for values in model.predict([step]))
        assert least <= (high / point) / (point / low) < most


def test_the_state_holds_the_whole_model(model):
    again = DecoderStepModel.load(model.dump())
    steps = [STEP, replace(STEP, gpus=64), replace(STEP, attention=AttentionKernel.FLASH3, dtype="bfloat16")]
    for before, after in zip(model.predict(steps), again.predict(steps), strict=True):
        assert after == pytest.approx(before)
    assert again.architectures == model.architectures


def test_the_parts_of_a_step_add_up(model):
    point, _, _, parts = model.predict_with_parts([STEP, replace(STEP, gpus=64)])
    assert sum(parts.values()) == pytest.approx(point[0])


def test_the_card_has_the_error_on_each_source_left_out():
    errors = shipped_step_model_errors()
    assert all(0 < figures["median"] < 25 for figures in errors.errors.values())
    assert errors.rows == sum(int(figures["n"]) for figures in errors.errors.values())


def test_twice_the_microbatches_take_almost_twice_as_long(model):
    once, twice = (float(model.predict([replace(STEP, microbatches=count)])[0][0]) for count in (8, 16))
    assert np.log2(twice / once) == pytest.approx(1, abs=0.05)
