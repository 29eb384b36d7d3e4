"""The cards of the shipped models."""

import msgspec
import pytest

from benchmarks.shipped.cards import ShippedEstimatorsCard, StepModelCard, shipped_network_card
from leadline.training.decoder_steps import STEP_MODEL_CARD_FILE, shipped_step_model
from leadline.training.shipped_files import read_shipped
from leadline.training.shipped_models import CARD_FILE


@pytest.fixture
def card():
    return msgspec.json.decode(read_shipped(STEP_MODEL_CARD_FILE), type=StepModelCard)


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


def test_the_step_model_card_has_errors_on_each_source_that_was_left_out(card):
    model = shipped_step_model()
    assert len(card.errors) >= 7
    assert all(name.startswith("without ") for name in card.errors)
    assert all(0 < value["median"] < 25 for value in card.errors.values())
    assert sum(value["n"] for value in card.errors.values()) == card.rows
    assert card.ranges["GPUs"] == (4.0, 1024.0)
    assert set(model.architectures) == {"Ampere", "Hopper", "Blackwell", "Blackwell Ultra"}
    assert card.refused
    assert card.limits
