"""What is trained and how frozen weights are stored is read from options; what contradicts itself is refused."""

import msgspec
import pytest

from leadline.app.workloads.options import OPTION_TABLES, WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import Adapters, CacheDtype, Optimizer, Quantization


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    return [str(path)]


def test_every_option_has_its_help():
    assert list(OPTION_TABLES.options) == [field.name for field in msgspec.structs.fields(WorkloadOptions)]


def test_adapters_and_weights_in_four_bits_are_read(config):
    workload = read_workload(config, WorkloadOptions(lora=16, lora_embeddings=True, quantize="4bit"))
    assert (Adapters(16, embeddings=True), Quantization.NF4) == (workload.adapters, workload.quantization)


def test_without_a_rank_all_weights_are_trained(config):
    workload = read_workload(config)
    assert (workload.adapters, workload.quantization) == (None, None)


def test_the_rules_of_bitsandbytes_are_read(config):
    for name in ("adamw8bit", "paged-adamw", "paged-adamw8bit"):
        assert Optimizer(name) is read_workload(config, WorkloadOptions(optimizer=name)).optimizer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "4bit"}, "--lora RANK"),
        ({"lora_embeddings": True}, "--lora-embeddings"),
        ({"lora": 0}, "at least 1"),
        ({"lora": 8, "phase": "inference"}, "merged"),
        ({"lora": 8, "gpus": 2, "tensor_parallel": 2}, "--sharding"),
        ({"lora": 8, "gpus": 2, "pipeline_parallel": 2}, "--sharding"),
        ({"lora": 8, "quantize": "8bit", "precision": "fp32"}, "bf16"),
        ({"phase": "inference", "quantize": "awq", "precision": "fp32"}, "precision is fp32: use bf16"),
        ({"phase": "inference", "quantize": "awq", "precision": "fp8"}, "precision is fp8: use bf16"),
        ({"lora": 8, "quantize": "awq"}, "8bit, 4bit to train adapters"),
        ({"phase": "inference", "generate": 8, "kv_cache_dtype": "fp8"}, "serving engine: add --paged"),
        ({"phase": "inference", "generate": 8, "paged": True, "kv_cache_dtype": "int4"}, "int8"),
        ({"phase": "inference", "loss": "fused"}, "--loss is fused, but it is for the training"),
        ({"loss": "liger"}, "plain, fused"),
        ({"phase": "inference", "fusion": "liger"}, "--fusion liger is for the training"),
    ],
)
def test_a_combination_without_sense_is_refused_in_one_sentence(config, options, message):
    with pytest.raises(InvalidInput, match=message):
        read_workload(config, WorkloadOptions(**options))


def test_a_precision_of_few_bits_is_the_weights_format_in_inference(config):
    workload = read_workload(config, WorkloadOptions(phase="inference", precision="nvfp4"))
    assert workload.quantization is Quantization.NVFP4
    assert read_workload(config, WorkloadOptions(precision="nvfp4")).quantization is None
    served = WorkloadOptions(phase="inference", generate=8, paged=True, quantize="w8a8", kv_cache_dtype="fp8")
    workload = read_workload(config, served)
    assert (workload.quantization, workload.cache_dtype) == (Quantization.W8A8, CacheDtype.FP8)
    auto = WorkloadOptions(phase="inference", generate=8, paged=True, kv_cache_dtype="auto")
    assert read_workload(config, auto).cache_dtype is None


def test_an_unknown_format_is_refused_with_those_there_are(config):
    with pytest.raises(UnknownName, match="'8bit' or '4bit'"):
        read_workload(config, WorkloadOptions(lora=8, quantize="3bit"))


def test_functions_and_commands_are_traced_as_they_are(tmp_path):
    script = tmp_path / "net.py"
    script.write_text("def build(): ...")
    for subject in ([f"{script}:build"], ["python", str(script)]):
        with pytest.raises(InvalidInput, match="as it is"):
            read_workload(subject, WorkloadOptions(lora=8))
    with pytest.raises(InvalidInput, match="for a config"):
        read_workload([f"{script}:build"], WorkloadOptions(optimizer="adamw8bit", input="1x1"))
