"""The attention of a configuration is the one that its file or --attention names."""

import pytest

from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.graph import OpKind
from leadline.core.workload import AttentionImplementation, Phase, Precision
from tests.graphs.hf_config.conftest import SMALL, flops, peak

EAGER, SDPA, FLASH = AttentionImplementation
SETTINGS = {"batch": 2, "sequence": 512, "precision": Precision.BF16}
GEMMA2 = {**SMALL, "model_type": "gemma2", "head_dim": 32}
GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_head": 8, "n_layer": 3, "vocab_size": 1000}
GPT_OSS = {**SMALL, "model_type": "gpt_oss", "head_dim": 32, "num_local_experts": 4, "sliding_window": 128}
LATENT = {**SMALL, "model_type": "deepseek_v3", "moe_intermediate_size": 64, "n_routed_experts": 4}


def written_scores(step):
    return sum(op.count for op in step.ops for spec in op.outputs if spec.shape == (2, 8, 512, 512))


@pytest.mark.parametrize("config", [SMALL, {**SMALL, "num_key_value_heads": 2}, GPT2, LATENT])
def test_eager_attention_writes_its_scores_and_sdpa_does_not(expanded, config):
    eager, fused = (expanded(config, attention=kernel, **SETTINGS).step for kernel in (EAGER, SDPA))
    assert written_scores(eager) > 0 == written_scores(fused)
    assert eager.parameters == fused.parameters
    assert peak(eager) > peak(fused) + 8 * 2 * 512 * 512 * 4


def test_eager_attention_computes_masked_scores_too(expanded):
    """A fused causal kernel skips the half that the mask hides."""
    eager, fused = (expanded(SMALL, attention=kernel, **SETTINGS).step for kernel in (EAGER, SDPA))
    products = flops(eager, OpKind.GEMM) - flops(fused, OpKind.GEMM)
    pairs = 3 * 2 * 8 * 512 * 512  # layers, samples, heads
    assert products == pairs * 32 * 2 * 2 * 3  # two products, backward twice as much
    assert flops(fused, OpKind.ATTENTION) == pairs * 32 * 2 * 2 * 3.5 / 2


@pytest.mark.parametrize("field", ["_attn_implementation", "attn_implementation"])
def test_the_file_names_the_attention_and_the_option_overrides_it(expanded, field):
    job = expanded({**SMALL, field: "eager"}, **SETTINGS)
    assert written_scores(job.step) > 0
    assert any("the attention is eager" in note for note in job.notes)
    assert written_scores(expanded({**SMALL, field: "eager"}, attention=SDPA, **SETTINGS).step) == 0
    assert written_scores(expanded({**SMALL, field: "flash_attention_2"}, **SETTINGS).step) == 0


@pytest.mark.parametrize("config", [GEMMA2, GPT_OSS])
def test_capped_scores_and_sinks_are_eager_by_default_and_fused_by_flash(expanded, config):
    default, flash = (expanded(config, attention=kernel, **SETTINGS).step for kernel in (None, FLASH))
    assert written_scores(default) > 0 == written_scores(flash)
    assert default.parameters == flash.parameters
    assert flops(flash, OpKind.ATTENTION) > 0


def test_t5_is_eager_unless_sdpa_is_named_and_its_dropout_is_held(expanded):
    """Releases of transformers up to 5.17 have no other attention for it."""
    t5 = {"model_type": "t5", "num_layers": 2, "d_model": 256, "d_kv": 32, "num_heads": 8, "vocab_size": 1000}
    default, eager, fused = (expanded(t5, attention=kernel, **SETTINGS) for kernel in (None, EAGER, SDPA))
    assert any("assumed: eager attention, as in transformers up to 5.17" in note for note in default.notes)
    assert peak(default.step) == peak(eager.step) > peak(fused.step)
    without = expanded({**t5, "dropout_rate": 0.0}, **SETTINGS).step
    layers, scores = 6, 2 * 8 * 512 * 512  # two stacks, and attention between them
    # Dropout holds its output in two bytes, and a mask of one.
    assert peak(default.step) > peak(without) + layers * scores * 3


def test_a_window_saves_work_in_flash_kernels_only(expanded):
    wide = {**GPT_OSS, "sliding_window": 512}
    for kernel, is_less in ((EAGER, False), (FLASH, True)):
        narrow, full = (expanded(config, attention=kernel, **SETTINGS).step.flops for config in (GPT_OSS, wide))
        assert (narrow < full) == is_less


def test_generation_with_eager_attention_adds_a_mask_for_all_cached_tokens(expanded):
    job = expanded(SMALL, attention=EAGER, phase=Phase.INFERENCE, batch=2, sequence=64, generated=8)
    masks = {
        op.outputs[0].shape
        for steps in job.generation.stretches
        for step in steps
        for op in step.graph.ops
        if op.name == "aten.where"
    }
    assert {(2, 1, 1, 65), (2, 1, 1, 71)} <= masks


@pytest.mark.parametrize(
    ("config", "kernel", "message"),
    [
        (GEMMA2, SDPA, "no sdpa attention for gemma2: use --attention eager or flash"),
        ({"model_type": "t5"}, FLASH, "no flash attention for t5"),
        ({**SMALL, "_attn_implementation": "quick"}, None, "'quick', which is not estimated"),
    ],
)
def test_an_attention_that_the_family_lacks_is_refused(expanded, config, kernel, message):
    with pytest.raises(InvalidInput, match=message):
        expanded(config, attention=kernel, **SETTINGS)


def test_flash_attention_in_float32_is_refused(expanded):
    with pytest.raises(InvalidInput, match="--precision is fp32: use --attention sdpa"):
        expanded(SMALL, attention=FLASH, precision=Precision.FP32)


def test_the_option_is_for_configurations(tmp_path):
    for name in ("config.json", "model.onnx"):
        (tmp_path / name).write_text("{}")
    options = WorkloadOptions(attention="eager")
    assert read_workload([str(tmp_path / "config.json")], options).attention is EAGER
    with pytest.raises(InvalidInput, match="--attention is eager, but it works for a config"):
        read_workload([str(tmp_path / "model.onnx")], options)
    with pytest.raises(UnknownName, match="unknown attention 'fast'"):
        read_workload([str(tmp_path / "config.json")], WorkloadOptions(attention="fast"))


@pytest.mark.parametrize(("share", "precision", "copies"), [(0.25, "bf16", 3), (1.0, "bf16", 0), (0.25, "fp32", 0)])
def test_what_flash_attention_mixes_for_partly_rotated_heads_is_copied(expanded, share, precision, copies):
    """Queries joined from two parts have heads first, and the kernel's output as well (PyTorch's ``empty_like``)."""
    config = {**SMALL, "model_type": "gpt_neox", "rotary_pct": share}
    step = expanded(config, batch=2, sequence=512, precision=Precision(precision)).step
    assert sum(op.count for op in step.ops if op.name == "aten.clone") == copies


def test_training_without_a_cache_holds_the_product_whose_part_the_values_are(expanded):
    """A cache copies keys and values, and the product of all three is freed; the copy is what the kernel saves."""
    wide = {**SMALL, "model_type": "gpt_neox", "vocab_size": 50000}  # the loss has the peak
    cached, plain = (expanded({**wide, "use_cache": flag}, **SETTINGS).step for flag in (True, False))
    tokens = 2 * 512 * 256 * 2
    assert peak(plain) - peak(cached) == 3 * (3 + 1 - 2) * tokens
    prompt = [expanded({**wide, "use_cache": flag}, phase=Phase.INFERENCE, **SETTINGS).step for flag in (True, False)]
    assert peak(prompt[0]) == peak(prompt[1])
