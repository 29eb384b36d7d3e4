"""Reasons and assumptions below the tables of estimate and recommend."""

import json

import pytest

from leadline.app.composition import toolbox
from leadline.interfaces.cli.main import main

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8,
    "num_hidden_layers": 4, "vocab_size": 1000, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
PLAN = ("--batch", "1", "--steps", "10", "--gpus", "16", "--sharding", "full")


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    toolbox.cache_clear()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))

    def run(verb, *words):
        assert main([verb, str(path), *PLAN, *words]) == 0
        return capsys.readouterr().out

    yield run
    toolbox.cache_clear()


@pytest.mark.parametrize("places", [("Delta:gpuA100x4",), ("Polaris:prod", "Delta:gpuA100x4")])
def test_a_recommendation_names_the_assumed_network_of_each_place_it_shows(printed, places):
    text = printed("recommend", *(word for place in places for word in ("--on", place)))
    assert "Why, for A100 SXM4 40GB" in text
    assert "assumed network: 200 Gb/s a GPU, as usual for A100 SXM4 40GB; the interval covers 25 to 200" in text
    assert "estimated with the training-step model" in text


def test_a_recommendation_on_known_networks_assumes_none(printed):
    text = printed("recommend", "--on", "Perlmutter")
    assert "Why, for A100 SXM4" in text
    assert "assumed network" not in text


def test_an_estimate_on_several_devices_explains_each(printed):
    text = printed("estimate", "--on", "H100 SXM5 80GB", "--on", "MI300X", "--on", "Cloud TPU v5p")
    for device in ("H100 SXM5 80GB", "MI300X", "Cloud TPU v5p"):
        assert text.count(f"Why, for {device} (") == 1
    for assumption in ("as usual for H100 SXM5 80GB", "as usual for MI300X", "assumed 4 nodes of 4 GPUs"):
        assert text.count(assumption) == 1


def test_a_reason_that_holds_for_several_devices_is_printed_once(printed):
    text = printed("estimate", "--on", "H100 SXM5 80GB", "--on", "H100 SXM5 80GB", "--on", "A100 SXM4 80GB")
    assert text.count("Why, for H100 SXM5 80GB") == 1
    assert text.count("assumed 2 nodes of 8 GPUs: name a system") == 1


def test_the_whole_catalog_is_explained_by_its_first_row_and_the_assumptions(printed):
    text = printed("estimate", "--network", "400Gb/s/gpu")
    assert text.count("Why, for") < 5
