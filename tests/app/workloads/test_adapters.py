"""A method of peft is read from words or from the file that peft saves, with the layers it adapts."""

import json

import pytest

from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import Adapters


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    return [str(path)]


@pytest.mark.parametrize(
    ("options", "adapters"),
    [
        ({"lora": 16}, Adapters(16)),
        ({"lora": 16, "lora_targets": "q_proj, v_proj"}, Adapters(16, targets=("q_proj", "v_proj"))),
        ({"lora": 8, "lora_targets": "all-linear"}, Adapters(8)),
        ({"lora": 8, "lora_targets": r".*\.(q|v)_proj"}, Adapters(8, targets=(r"re:(?:.*\.(q|v)_proj)$",))),
        ({"peft": "IA3"}, Adapters(method="ia3", targets=())),
        ({"peft": "dora", "lora": 4}, Adapters(4, method="dora", targets=())),
        ({"peft": "vera", "lora_targets": "all-linear"}, Adapters(method="vera")),
        ({"peft": "LN_TUNING", "lora_embeddings": True}, Adapters(method="ln-tuning", targets=(), embeddings=True)),
        (
            {"peft": "lora:r=8,use_dora=true,lora_dropout=0.05"},
            Adapters(targets=(), settings=(("r", 8), ("use_dora", True), ("lora_dropout", 0.05))),
        ),
    ],
)
def test_methods_and_layers_are_read(config, options, adapters):
    assert adapters == read_workload(config, WorkloadOptions(**options)).adapters


def saved(tmp_path, **content):
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_the_file_that_peft_saves_is_read(config, tmp_path):
    path = saved(
        tmp_path, peft_type="LORA", r=32, lora_alpha=64, lora_dropout=0.1, target_modules=["v_proj", "q_proj"],
        modules_to_save=["lm_head"], rank_pattern={}, use_dora=False, inference_mode=True,
        use_bdlora={"nblocks": 2, "target_modules_bd_a": ["o_proj"]},
    )  # fmt: skip
    adapters = read_workload(config, WorkloadOptions(peft=path)).adapters
    assert (adapters.method, adapters.targets, adapters.embeddings) == ("lora", ("q_proj", "v_proj"), True)
    expected = {"r": 32, "lora_dropout": 0.1, "use_dora": False, "use_bdlora": True, "nblocks": 2}
    assert dict(adapters.settings) == expected


def test_an_expression_and_a_list_of_words_in_a_file_are_read(config, tmp_path):
    path = saved(tmp_path, peft_type="IA3", target_modules=r".*\.(k|v)_proj", feedforward_modules=["fc1", "fc2"])
    adapters = read_workload(config, WorkloadOptions(peft=path)).adapters
    assert (adapters.targets, dict(adapters.settings)) == (
        (r"re:(?:.*\.(k|v)_proj)$",), {"feedforward_modules": "fc1+fc2"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_targets": "q_proj"}, "--lora-targets needs adapters"),
        ({"lora": 8, "lora_targets": " ,"}, "empty"),
        ({"peft": "lora:r"}, "write settings as in"),
        ({"peft": "prefix-tuning", "checkpointing": True}, "cannot run prefix-tuning with activation checkpointing"),
        ({"peft": "prompt-tuning", "lora_targets": "q_proj"}, "adapts no linear layers"),
        ({"peft": "ia3", "lora": 8}, "has none"),
        ({"peft": "ia3", "phase": "inference"}, "--peft trains adapters"),
        ({"peft": "ia3", "gpus": 2, "tensor_parallel": 2}, "--peft works with --sharding only"),
    ],
)
def test_a_combination_without_sense_is_refused_in_one_sentence(config, options, message):
    with pytest.raises(InvalidInput, match=message):
        read_workload(config, WorkloadOptions(**options))


def test_an_unknown_method_or_setting_is_refused_with_those_there_are(config):
    with pytest.raises(UnknownName, match="did you mean 'dora'"):
        read_workload(config, WorkloadOptions(peft="dorra"))
    with pytest.raises(UnknownName, match="known are"):
        read_workload(config, WorkloadOptions(peft="ia3:rank=3"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"r": 8}, "no peft_type"),
        ({"peft_type": "LORA", "layers_to_transform": [0, 1]}, "layers_to_transform, which is not estimated"),
        ({"peft_type": "LORA", "rank_pattern": {"q_proj": 4}}, "rank_pattern, which is not estimated"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(config, tmp_path, content, message):
    with pytest.raises(InvalidInput, match=message):
        read_workload(config, WorkloadOptions(peft=saved(tmp_path, **content)))
