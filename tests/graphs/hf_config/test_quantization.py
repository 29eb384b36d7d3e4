"""Checkpoints in few bits: the bytes of their weights, the modules left out, and a dtype that no field names."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.graph import OpKind
from leadline.core.workload import (
    Adapters,
    CacheDtype,
    ModelKind,
    ModelSource,
    Phase,
    Precision,
    Quantization,
    Workload,
)
from leadline.graphs.hf_config.expand import expand
from leadline.graphs.hf_config.quantization import METHODS, ModulePatterns, read_quantization
from tests.graphs.hf_config.conftest import LLAMA_7B, SMALL, flops

GPT_OSS_120B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 36, "num_local_experts": 128,
    "num_experts_per_tok": 4, "vocab_size": 201088, "max_position_embeddings": 131072, "sliding_window": 128,
    "attention_bias": True, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "max_position_embeddings": 163840, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}


def groups(weights, **more):
    group = {"weights": weights, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


@pytest.fixture
def inference(tmp_path):
    def run(config, **choices):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        source = ModelSource(ModelKind.HF_CONFIG, str(path))
        return expand(Workload(source, **{"phase": Phase.INFERENCE, "sequence": 16, **choices}))

    return run


def test_gpt_oss_has_its_published_size_and_fits_80_gigabytes(inference):
    job = inference(GPT_OSS_120B)
    assert job.step.parameter_bytes / 2**30 == pytest.approx(60.8, rel=0.002)  # the checkpoint, by its model card
    assert job.loop.precision == "bf16"
    assert any("names no dtype: assumed bf16" in note for note in job.notes)
    assert job.low_confidence


def test_deepseek_v3_has_its_published_size(inference):
    job = inference(DEEPSEEK_V3)
    # The 689 GB on disk hold a further layer for multi-token prediction, with its own embedding and head.
    layer = 256 * 3 * 7168 * 2048 + 2 * 2 * 129280 * 7168 + 3 * 7168 * 2048 + 2 * 7168**2 + 187e6
    assert job.step.parameter_bytes + layer == pytest.approx(689e9, rel=0.002)
    assert not any("names no dtype" in note for note in job.notes)


LINEAR_7B = 32 * (4 * 4096**2 + 3 * 4096 * 11008)


@pytest.mark.parametrize(
    ("section", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4.127),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "fp8", "activation_scheme": "static"}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "fbgemm_fp8"}, 8),
        (groups(GROUP), 4 + 16 / 128),
        (groups({**GROUP, "symmetric": False}), 4 + 20 / 128),
        (groups({"num_bits": 8, "type": "float", "strategy": "channel"}), 8),
        (groups({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}), 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 64}}, 4.5),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}}, 8),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, 4.5),
        ({"quant_method": "eetq"}, 8),
        ({"quant_method": "quanto", "weights": "int4"}, 4 + 24 / 128),
        ({"quant_method": "bitnet"}, 2),
        ({"quant_method": "mxfp4"}, 16),  # it is for experts alone
    ],
)  # fmt: skip
def test_each_method_counts_its_bits_scales_and_zero_points(inference, section, bits):
    step = inference({**LLAMA_7B, "quantization_config": section}).step
    plain = inference({**LLAMA_7B, "torch_dtype": "float16"}).step
    weight_bytes = step.parameter_bytes - (plain.parameter_bytes - 2 * LINEAR_7B)
    assert weight_bytes * 8 / LINEAR_7B == pytest.approx(bits, abs=0.015)
    assert step.parameters == plain.parameters


def linear_bits(step, plain):
    return (step.parameter_bytes - (plain.parameter_bytes - 2 * LINEAR_7B)) * 8 / LINEAR_7B


@pytest.mark.parametrize(
    ("name", "content", "bits"),
    [
        ("hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": {
            "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}},
         4.5),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, 8),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False, "sym": True}, 4 + 20 / 128),
        ("quantize_config.json", {"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ("quant_config.json", {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}, 4 + 20 / 128),
    ],
)  # fmt: skip
def test_a_quantization_in_a_file_beside_the_configuration_counts(inference, tmp_path, name, content, bits):
    plain = inference({**LLAMA_7B, "torch_dtype": "float16"}).step
    (tmp_path / name).write_text(json.dumps(content))
    assert linear_bits(inference(LLAMA_7B).step, plain) == pytest.approx(bits, abs=0.015)
    own = {**LLAMA_7B, "quantization_config": {"quant_method": "eetq"}}
    assert linear_bits(inference(own).step, plain) == pytest.approx(8, abs=0.015)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"quantization": {"quant_algo": "MIXED_PRECISION"}}', "has quant_algo 'MIXED_PRECISION'"),
        ("[4]", "quantization_config is [4], but it must be an object"),
        ("{", "hf_quant_config.json"),
    ],
)
def test_a_file_beside_that_cannot_be_read_is_refused_by_its_name(inference, tmp_path, content, says):
    (tmp_path / "hf_quant_config.json").write_text(content)
    with pytest.raises(InvalidInput) as refusal:
        inference(SMALL)
    assert says in str(refusal.value)
    assert "hf_quant_config.json" in str(refusal.value)


@pytest.mark.parametrize("flags", [{}, {"load_in_8bit": False}, {"load_in_4bit": False, "load_in_8bit": False}])
def test_bitsandbytes_that_loads_in_no_bits_quantizes_nothing(inference, flags):
    section = {"quant_method": "bitsandbytes", **flags}
    plain = inference({**LLAMA_7B, "torch_dtype": "float16"}).step
    step = inference({**LLAMA_7B, "torch_dtype": "float16", "quantization_config": section}).step
    assert step.parameter_bytes == plain.parameter_bytes


@pytest.mark.parametrize(
    ("form", "bits"),
    [
        ("awq", 4 + 20 / 128),
        ("gptq", 4 + 20 / 128),
        ("w8a16", 8),
        ("w8a8", 8),
        ("fp8", 8),
        ("fp8-block", 8 + 32 / 128**2),
        ("mxfp8", 8.25),
        ("nvfp4", 4.5),
        ("8bit", 8),
        ("4bit", 4 + 8 / 64),
    ],
)
def test_formats_chosen_for_inference_have_their_bits_and_leave_the_tables_alone(inference, form, bits):
    plain = inference({**LLAMA_7B, "torch_dtype": "bfloat16"})
    job = inference({**LLAMA_7B, "torch_dtype": "bfloat16"}, quantization=Quantization(form))
    assert linear_bits(job.step, plain.step) == pytest.approx(bits, abs=0.015)
    assert flops(job.step, OpKind.GEMM) == flops(plain.step, OpKind.GEMM)
    assert any("the model has" in note for note in job.notes)


@pytest.mark.parametrize(
    ("section", "product"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "float8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "float8-block"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "float4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "int"}}}}, "int8"),
        ({"quant_method": "torchao", "quant_type": "float8_dynamic_activation_float8_weight"}, "float8"),
        ({"quant_method": "torchao", "quant_type": "float8_weight_only"}, None),
        (groups({"num_bits": 8, "type": "float", "strategy": "channel"}), None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, None),
    ],
)  # fmt: skip
def test_products_are_in_few_bits_where_activations_are_quantized_too(inference, section, product):
    step = inference({**SMALL, "quantization_config": section}).step
    scaled = [op for op in step.ops if op.name.endswith("_scaled_mm")]
    assert {op.name for op in scaled} == ({f"aten.{product}_scaled_mm"} if product else set())
    assert sum(op.count for op in scaled) == (3 * 7 if product else 0)
    few = {"float4": 0.6}.get(product, 1.1)
    assert all(op.bytes_read < few * (op.dims["m"] + op.dims["n"]) * op.dims["k"] for op in scaled)


def test_experts_are_quantized_and_the_router_is_not(inference):
    config = {key: value for key, value in GPT_OSS_120B.items() if key != "quantization_config"}
    step = inference(config, quantization=Quantization.FP8).step
    products = [op for op in step.ops if op.kind is OpKind.GEMM and op.name != "aten.bmm"]
    assert {op.name for op in products if op.dims.get("b", 1) > 1} == {"aten.float8_scaled_mm"}
    routers = [op for op in products if op.dims["n"] == 128]
    assert [op.name.endswith("_scaled_mm") for op in routers] == [False]


def test_a_narrow_cache_takes_half_of_the_memory_and_of_the_reading(inference):
    config = {**LLAMA_7B, "torch_dtype": "bfloat16"}
    wide, narrow = (
        inference(config, generated=4, sequence=1024, paged=True, cache_dtype=dtype).generation
        for dtype in (None, CacheDtype.FP8)
    )
    assert narrow.cache_bytes * 2 == wide.cache_bytes
    read = [sum(op.bytes_read for op in run.last.ops if op.kind is OpKind.ATTENTION) for run in (wide, narrow)]
    assert read[1] == pytest.approx(read[0] / 2, rel=0.01)


def test_engines_merge_products_of_one_source_unless_their_formats_differ(inference):
    def products(**section):
        config = {**SMALL, "torch_dtype": "bfloat16", **({"quantization_config": section} if section else {})}
        last = inference(config, generated=2, paged=True).generation.last
        return sum(op.count for op in last.ops if op.kind is OpKind.GEMM)

    assert products() == 3 * 4 + 1
    mixed = {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["layers.1.mlp.up_proj"]}
    assert products(**mixed) == 3 * 4 + 1 + 1


DOWN, ATTENTION = 32 * 4096 * 11008, 32 * 4 * 4096**2


@pytest.mark.parametrize(
    ("more", "bits"),
    [
        ({"dynamic": {r"+:.*\.down_proj": {"bits": 8}}}, (8 * DOWN + 4 * (LINEAR_7B - DOWN)) / LINEAR_7B),
        ({"dynamic": {r".*\.down_proj": {"bits": 8}}}, (8 * DOWN + 4 * (LINEAR_7B - DOWN)) / LINEAR_7B),
        ({"dynamic": {r"-:.*\.down_proj": {}}}, (16 * DOWN + 4 * (LINEAR_7B - DOWN)) / LINEAR_7B),
        ({"dynamic": {r"+:.*\.self_attn\..*": {"bits": 2}, r"-:.*\.down_proj": {}}},
         (2 * ATTENTION + 16 * DOWN + 4 * (LINEAR_7B - DOWN - ATTENTION)) / LINEAR_7B),
        ({"extra_config": {f"model.layers.{n}.mlp.down_proj": {"bits": 8} for n in range(32)}},
         (8 * DOWN + 4 * (LINEAR_7B - DOWN)) / LINEAR_7B),
        ({"extra_config": {r"model\.layers\.\d+\.mlp\.down_proj": {"bits": 16, "data_type": "float"}}},
         (16 * DOWN + 4 * (LINEAR_7B - DOWN)) / LINEAR_7B),
    ],
)  # fmt: skip
def test_modules_with_settings_of_their_own_count_with_those(inference, more, bits):
    method = "auto-round" if "extra_config" in more else "gptq"
    section = {"quant_method": method, "bits": 4, "group_size": 4096, **more}
    plain = inference({**LLAMA_7B, "torch_dtype": "float16"}).step
    step = inference({**LLAMA_7B, "quantization_config": section}).step
    assert linear_bits(step, plain) == pytest.approx(bits, abs=0.03)


def test_an_output_layer_with_settings_of_its_own_is_quantized(inference):
    section = {"quant_method": "auto-round", "bits": 4, "group_size": 128}
    kept = inference({**LLAMA_7B, "quantization_config": section}).step
    head = inference({**LLAMA_7B, "quantization_config": {**section, "extra_config": {"lm_head": {"bits": 8}}}}).step
    assert kept.parameter_bytes - head.parameter_bytes == pytest.approx(4096 * 32000, rel=0.03)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": 8}}, "has +:.* 8, but it must be an object"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:((": {}}}, "the module pattern 're:((' is broken"),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"a": {"bits": 12}}}, "has bits 12"),
        ({"quant_method": "aqlm"}, "the quantization method 'aqlm' is unknown"),
        ({}, "the quantization method 'none' is unknown"),
        ("int4", "quantization_config is 'int4', but it must be an object"),
        ({"quant_method": "gptq"}, "has bits None, but it must be a whole number from 1 to 8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "x"}, "has group_size 'x'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "has weight_block_size"),
        ({"quant_method": "compressed-tensors"}, "has config_groups {}"),
        (groups({**GROUP, "type": "bit"}), "has type 'bit', but it must be float or int"),
        ({"quant_method": "torchao", "quant_type": "uintx"}, "has quant_type 'uintx'"),
        ({"quant_method": "awq", "modules_to_not_convert": "lm_head"}, "must be a list of module names"),
        ({"quant_method": "awq", "ignore": ["re:(("]}, "the module pattern 're:((' is broken"),
        ({"quant_method": "awq", "ignore": ["re:(a+)+$"]}, "cannot be searched: simplify it"),
    ],
)
def test_an_unknown_method_or_value_is_one_sentence_that_names_it(inference, section, says):
    with pytest.raises(InvalidInput) as refusal:
        inference({**SMALL, "quantization_config": section})
    assert says in str(refusal.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "bits", "group_size", "weight_block_size", "modules_to_not_convert", "ignore", "config_groups", "quant_type",
    "quant_type_kwargs", "quant_config", "weights", "dynamic", "extra_config", "quant_algo", "load_in_4bit", "lm_head",
)  # fmt: skip


@settings(max_examples=400)
@given(st.sampled_from([*METHODS, "other"]), st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4))
def test_any_section_is_read_or_refused_with_one_error(method, fields):
    with contextlib.suppress(InvalidInput):
        quantization = read_quantization({"quantization_config": {"quant_method": method, **fields}}, "config.json")
        if quantization is None:
            assert method == "bitsandbytes"
            return
        form = quantization.format_of("layers.0.mlp.up_proj", expert=True)
        assert form is None or all(size > 0 for size, _ in form.parts(64, 32))


@pytest.mark.parametrize(
    ("pattern", "module", "matches"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.0.mlp.gate", "layers.0.mlp.gate_proj", False),
        ("mlp.gate", "layers.3.mlp.gate", True),
        ("model.layers.1.mlp", "layers.1.mlp.down_proj", True),
        ("model.layers.1", "layers.10.mlp.down_proj", False),
        ("model.layers.*.self_attn", "layers.7.self_attn.q_proj", True),
        ("re:.*self_attn.*", "layers.7.self_attn.q_proj", True),
        (r"re:^model\.layers\.[0-3]\..*", "layers.2.mlp.up_proj", True),
        (r"re:^model\.layers\.[0-3]\..*", "layers.4.mlp.up_proj", False),
        ("language_model.model.layers.2.mlp", "layers.2.mlp.up_proj", True),
        ("model.layers.2.block_sparse_moe.experts", "layers.2.mlp.experts.gate_up_proj", True),
        ("vision_tower", "layers.2.mlp.up_proj", False),
    ],
)
def test_the_spellings_of_module_lists(pattern, module, matches):
    assert ModulePatterns([pattern], "config.json").match(module) is matches


def test_modules_left_out_keep_the_dtype_of_the_checkpoint(inference):
    section = {"quant_method": "awq", "bits": 4, "group_size": 128}
    whole = inference({**SMALL, "quantization_config": section}).step
    some = inference({**SMALL, "quantization_config": {**section, "modules_to_not_convert": ["layers.1.mlp"]}}).step
    weights = 3 * 256 * 688
    stored = weights / 2 + 3 * (2 + 0.5) * weights / 3 / 128  # scales of 16 bits and zero points of 4
    assert some.parameter_bytes - whole.parameter_bytes == pytest.approx(2 * weights - stored, rel=0.01)


def test_decoding_reads_the_packed_weights_and_multiplies_as_often(inference):
    section = {"quant_method": "awq", "bits": 4, "group_size": 128}
    runs = {"generated": 8, "precision": Precision.FP16}
    plain, packed = (
        inference(config, **runs).generation.last for config in (LLAMA_7B, {**LLAMA_7B, "quantization_config": section})
    )
    assert flops(packed, OpKind.GEMM) == flops(plain, OpKind.GEMM)
    read = [sum(op.bytes_read * op.count for op in graph.ops if op.kind is OpKind.GEMM) for graph in (plain, packed)]
    assert read[1] / read[0] == pytest.approx((4.156 * LINEAR_7B + 16 * 4096 * 32000) / 16 / 6.607e9, rel=0.02)


def test_experts_without_tokens_are_not_read(inference):
    few = inference(GPT_OSS_120B, generated=2).generation.last
    products = [op for op in few.ops if op.kind is OpKind.GEMM and op.dims["b"] == 4]
    assert sum(op.count for op in products) == 2 * 36
    assert max(op.bytes_read for op in products) < 4 * 2880 * 5760 * 0.6


def test_a_quantized_checkpoint_is_not_trained_but_adapted(inference):
    section = {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}
    config = {**SMALL, "quantization_config": section}
    with pytest.raises(InvalidInput, match="such weights cannot be trained: train adapters with --lora"):
        inference(config, phase=Phase.TRAINING)
    with pytest.raises(InvalidInput, match=r"is quantized already .*leave --quantize out"):
        inference(config, phase=Phase.TRAINING, adapters=Adapters(8), quantization=Quantization.NF4)
    with pytest.raises(InvalidInput, match=r"is quantized already .*leave --precision fp8 out"):
        inference(config, precision=Precision.FP8, quantization=Quantization.FP8)
    stored = inference(config, phase=Phase.TRAINING, adapters=Adapters(8))
    option = inference(SMALL, phase=Phase.TRAINING, adapters=Adapters(8), quantization=Quantization.NF4)
    assert stored.step == option.step


@pytest.mark.parametrize(
    ("fields", "precision", "unknown"),
    [
        ({"dtype": "float16"}, "fp16", False),
        ({"torch_dtype": "torch.bfloat16"}, "bf16", False),
        ({"text_config": {**SMALL, "dtype": "float32"}}, "fp32", False),
        ({"torch_dtype": "auto"}, "bf16", True),
        ({}, "bf16", True),
        ({"quantization_config": {"quant_method": "eetq"}}, "bf16", True),
    ],
)
def test_a_dtype_that_the_file_does_not_name_is_assumed_and_said_so(inference, fields, precision, unknown):
    job = inference({**SMALL, **fields})
    assert job.loop.precision == precision
    assert any("names no dtype" in note and "--precision" in note for note in job.notes) is unknown


def test_families_of_float32_checkpoints_keep_it(inference):
    gpt2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100, "n_positions": 64}
    job = inference(gpt2)
    assert job.loop.precision == "fp32"
    assert any("assumed fp32, as most published gpt2 checkpoints" in note for note in job.notes)


def test_a_dtype_that_is_not_estimated_is_refused(inference):
    with pytest.raises(InvalidInput, match="has the dtype 'float64', which is not estimated: set --precision"):
        inference({**SMALL, "torch_dtype": "float64"})


def test_a_given_precision_needs_no_assumption(inference):
    workload_notes = inference(SMALL, precision=Precision.FP16).notes
    assert not any("names no dtype" in note for note in workload_notes)
