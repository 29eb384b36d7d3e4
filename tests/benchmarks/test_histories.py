from dataclasses import replace

import numpy as np
import pytest

from benchmarks.histories import read_histories, split_history
from leadline.core.errors import InvalidInput
from leadline.core.runs import Scale


@pytest.fixture
def history(made_up_histories):
    return read_histories(made_up_histories)[0]


def configurations(records):
    return {tuple(sorted(record.features.items())) for record in records}


def test_a_history_is_read_with_what_its_campaign_says_of_scale(history):
    assert history.name == "made-up"
    assert history.scale_features == ("epochs", "samples")
    assert history.work == "epochs"
    assert (len(history.at(Scale.SCALED_DOWN)), len(history.at(Scale.FULL_SCALE))) == (50, 14)


def test_no_configuration_is_learned_from_and_asked_about(history):
    parted = split_history(history, 5, seed=1)
    assert not configurations(parted.learned) & configurations(parted.held_out)
    assert (len(parted.learned), len(parted.held_out)) == (55, 9)
    assert {Scale.FULL_SCALE} == {record.scale for record in parted.held_out}


def test_a_larger_campaign_holds_the_smaller_ones(history):
    small, large = (split_history(history, full, 3, scaled_down=down) for full, down in ((2, 20), (5, 40)))
    assert configurations(small.learned) < configurations(large.learned)
    assert len(small.learned) == 22


def test_another_seed_draws_others(history):
    assert configurations(split_history(history, 5, 0).learned) != configurations(split_history(history, 5, 1).learned)


def test_the_saving_is_that_of_as_many_runs_at_full_scale(history):
    parted = split_history(history, 0, 0)
    mean = sum(record.metrics["elapsed_s"] for record in parted.held_out) / 14
    assert 50 * mean / sum(record.metrics["elapsed_s"] for record in parted.learned) == pytest.approx(parted.cheaper)


def test_what_is_learned_from_scaled_down_runs_alone_knows_what_carries_scale(history):
    assert split_history(history, 0, 0).training("elapsed_s").dataset.scale_features == ("epochs", "samples")
    assert len(split_history(history, 0, 0).test("host_memory_bytes")) == 14


def test_the_noise_is_what_a_perfect_model_would_be_off_by(history):
    assert history.noise is None
    rng = np.random.default_rng(0)
    repeated = [
        replace(one, metrics={**one.metrics, "elapsed_s": 100 * float(np.exp(0.1 * rng.standard_normal()))})
        for one in history.at(Scale.FULL_SCALE)
        for _ in range(50)
    ]
    assert 100 * 0.1 * np.sqrt(2 / np.pi) == pytest.approx(replace(history, records=tuple(repeated)).noise, rel=0.1)


def test_a_folder_without_histories_is_said_to_be_one(tmp_path):
    with pytest.raises(InvalidInput, match="holds no history"):
        read_histories(tmp_path)


def test_a_history_without_its_campaign_is_refused(tmp_path, made_up_histories):
    (tmp_path / "lone.csv.gz").write_bytes((made_up_histories / "made-up.csv.gz").read_bytes())
    with pytest.raises(InvalidInput, match=r"put lone\.toml into"):
        read_histories(tmp_path)
