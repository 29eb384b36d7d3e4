"""The cards of the shipped models; the fitting and writing of the model of training steps."""

import msgspec
import numpy as np
import pytest

from benchmarks.shipped.cards import ShippedEstimatorsCard, StepModelCard, shipped_network_card
from benchmarks.shipped.step_model import fit_step_model, write_step_model
from benchmarks.shipped.transformer_fitting import model_flops
from leadline.catalog.read import TomlCatalog
from leadline.estimators.step_time.transformer import TransformerStep
from leadline.files.arrays import read_arrays
from leadline.training.shipped_files import read_shipped
from leadline.training.shipped_models import CARD_FILE
from leadline.training.transformer_steps import ALL, BEYOND, STEP_MODEL_CARD_FILE, load_step_model, shipped_step_model

pytest.importorskip("scipy")

A100 = TomlCatalog().device("A100 SXM4 80GB")


def step(width, layers, gpus, sequence, microbatch):
    weights = 12.0 * layers * width**2
    return TransformerStep(
        A100, gpus, layers, width, 50_000, weights, weights + 50_000 * width, sequence, microbatch,
        node_bytes_per_s=200e9, nodes=max(1, gpus // 8),
    )  # fmt: skip


STEPS = [
    step(width, layers, gpus, sequence, batch)
    for width, layers in ((1024, 24), (2048, 24), (4096, 32))
    for gpus in (8, 16, 32)
    for sequence, batch in ((512, 16), (1024, 8), (2048, 2))
]


@pytest.fixture
def card():
    return msgspec.json.decode(read_shipped(STEP_MODEL_CARD_FILE), type=StepModelCard)


def test_scores_of_extrapolations_are_separate_and_survive_saving():
    gpus, length = (np.array([getattr(step, name) for step in STEPS]) for name in ("gpus", "sequence"))
    splits = [(gpus <= 8, gpus > 8), (length <= 512, length > 512)]
    seconds = np.array([model_flops(step) / (0.6 * A100.peak_flops_per_s["bfloat16"]) + 0.01 for step in STEPS])
    seconds *= np.exp(np.random.default_rng(0).normal(0, 0.02, len(STEPS)))
    model = fit_step_model(STEPS, seconds, [str(number) for number in range(len(STEPS))], splits)
    assert {ALL, ALL + BEYOND} <= set(model.scores)
    assert len(model.scores[ALL + BEYOND].scores) >= 36
    again = load_step_model(model.dump())
    for before, after in zip(model.predict(STEPS, 0.9), again.predict(STEPS, 0.9), strict=True):
        assert after == pytest.approx(before)


def test_the_card_of_the_estimators_lists_their_training_data():
    card = msgspec.json.decode(read_shipped(CARD_FILE), type=ShippedEstimatorsCard)
    assert card.schema == "leadline.shipped/1"
    assert set(card.learned_from) == {record.estimator for record in card.records}


def test_the_network_card_has_the_errors_on_held_out_families():
    card = shipped_network_card()
    assert set(card.devices) == {"RTX 3090", "RTX 4090"}
    assert set(card.errors) == set(card.law)
    assert all(0 < value["median"] < value["mape"] < value["p90"] for value in card.errors.values())
    assert sum(value["n"] for value in card.errors.values()) == card.rows


def test_the_step_model_card_has_errors_and_limits(card):
    model = shipped_step_model()
    assert card.rows == 216
    assert {"64 and more GPUs from fewer", "H100 from A100", "random by configuration"} <= set(card.errors)
    assert all(0 < value["median"] <= value["mape"] < 5 for value in card.errors.values())
    assert set(card.errors) == set(card.coverage)
    assert card.ranges["GPUs"] == (8.0, 512.0)
    assert set(model.law.generations) == {"Ampere 8.0", "Hopper 9.0"}
    assert card.licence.startswith("Apache-2.0")
    assert card.refused
    assert card.limits


def test_a_written_step_model_is_read_back_the_same(tmp_path, card):
    model = shipped_step_model()
    write_step_model(tmp_path, model, card)
    again = load_step_model(read_arrays((tmp_path / "llm_training.npz").read_bytes(), "llm_training.npz"))
    assert again.law.theta.tolist() == model.law.theta.tolist()
    assert {name: scores.factor(0.9) for name, scores in again.scores.items()} == {
        name: scores.factor(0.9) for name, scores in model.scores.items()
    }
    assert msgspec.json.decode((tmp_path / STEP_MODEL_CARD_FILE).read_bytes(), type=StepModelCard) == card
