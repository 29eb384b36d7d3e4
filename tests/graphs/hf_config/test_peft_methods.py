"""Every method of peft's examples trains as many weights as peft counts, and runs as peft runs it."""

import pytest

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.graph import OpKind, StorageCategory
from leadline.core.workload import Adapters, Quantization
from leadline.graphs.hf_config.families import read_model_shape
from leadline.graphs.hf_config.model import TransformerModel
from leadline.graphs.hf_config.modules import ModelBuilder
from leadline.graphs.hf_config.peft_methods import METHODS, AdapterPlan
from leadline.graphs.hf_config.tape import Tape
from tests.graphs.hf_config.conftest import SMALL, flops, peak

LLAMA_3B = {"model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24,
            "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 28, "vocab_size": 128256,
            "max_position_embeddings": 131072, "tie_word_embeddings": True}  # fmt: skip
MLP = ("gate_proj", "up_proj", "down_proj")
# Trained weights of Llama 3.2 3B as peft 0.19 counts them (method_comparison/MetaMathQA in huggingface/peft).
COUNTED = [
    ("lora", {"r": 32}, (), 9_175_040),
    ("lora", {"r": 10}, MLP, 9_461_760),
    ("rslora", {"r": 64}, (), 18_350_080),
    ("dora", {"r": 32}, (), 9_289_728),
    ("lora-fa", {"r": 32}, (), 3_670_016),
    ("mica", {"r": 32}, (), 5_505_024),
    ("bdlora", {"r": 14, "nblocks": 2}, MLP, 8_429_568),
    ("adalora", {"init_r": 64}, (), 18_353_664),
    ("adamss", {"num_subspaces": 32}, (), 293_888),
    ("beft", {}, (), 28_672),
    ("boft", {}, (), 802_816),
    ("c3a", {"block_size": 64}, (), 5_505_024),
    ("deft", {"r": 32}, (), 9_175_040),
    ("deft", {"r": 32, "para": True}, (), 3_670_016),
    ("delora", {"r": 32}, (), 9_175_096),
    ("fourierft", {}, (), 56_000),
    ("frod", {}, (), 5_456_808),
    ("frod", {"sparse_rate": 0.02}, (), 10_741_640),
    ("glora", {}, (), 4_587_520),
    ("glora", {"config_A_B": "vector"}, (), 229_376),
    ("gralora", {}, (), 9_175_040),
    ("hira", {}, (), 9_175_040),
    ("ia3", {}, (), 286_720),
    ("ia3", {"feedforward_modules": "up_proj+gate_proj+down_proj"}, ("all-linear",), 630_784),
    ("lily", {"r": 140, "stride_A": 14}, MLP, 9_485_280),
    ("lily", {"r": 896, "stride_A": 14}, (), 18_450_432),
    ("ln-tuning", {}, (), 175_104),
    ("loha", {"r": 32}, (), 18_350_080),
    ("lokr", {"r": 32, "decompose_factor": 4}, (), 2_294_656),
    ("miss", {}, (), 7_340_032),
    ("miss", {"init_weights": "bat"}, (), 7_340_032),
    ("miss", {"init_weights": "mini", "mini_r": 64}, (), 229_376),
    ("oft", {"r": 32}, (), 8_171_520),
    ("peanut", {}, (), 7_340_032),
    ("prefix-tuning", {"num_virtual_tokens": 200}, (), 11_468_800),
    ("prompt-tuning", {"num_virtual_tokens": 200}, (), 614_400),
    ("psoft", {"r": 256}, (), 1_856_512),
    ("p-tuning", {}, (), 28_382_208),
    ("pvera", {}, (), 143_360),
    ("randlora", {}, (), 9_289_728),
    ("road", {"variant": "road_2"}, (), 229_376),
    ("shira", {}, (), 9_175_040),
    ("tinylora", {}, (), 3_584),
    ("tinylora", {"weight_tying": 1.0}, (), 64),
    ("unilora", {"r": 32}, (), 256),
    ("vblora", {}, (), 1_212_416),
    ("vera", {}, (), 129_024),
    ("waveft", {"n_frequency": 5000}, (), 280_000),
]  # fmt: skip


def trained_weights(config, method, settings, targets=()):
    plan = AdapterPlan(Adapters(method=method, targets=targets, settings=tuple(settings.items())))
    builder = ModelBuilder(Tape(), "bfloat16", adapters=plan)
    TransformerModel(builder, read_model_shape(config, "config.json")[0])
    plan.require_layers("config.json")
    return sum(weight.elements for weight in builder.tape.parameters)


@pytest.mark.parametrize(("method", "settings", "targets", "counted"), COUNTED)
def test_a_method_trains_as_many_weights_as_peft_counted(method, settings, targets, counted):
    assert counted == trained_weights(LLAMA_3B, method, settings, targets)


# Llama with layers of 256 × 256 (q and v), 3 of them: by the formulas of peft's layers.
FORMULAS = [
    ("hra", {"r": 8}, 6 * 256 * 8),
    ("kasa", {"r": 4}, 6 * (4 * 512 + 4)),
    ("qalora", {"r": 4, "qalora_group_size": 16}, 6 * 4 * (16 + 256)),
    ("monteclora", {"r": 4, "num_samples": 8}, 6 * (4 * 512 + 4 + 8)),
    ("poly", {"r": 4, "n_tasks": 5, "n_skills": 2}, 6 * (2 * 4 * 512 + 5 * 2)),
    ("supertuning", {"sparsity": 0.75}, 6 * 256 * 256 // 4),
    ("supertuning", {"sparsity": 0.75, "r": 4}, 6 * (256 * 256 // 4 + 4 * 512)),
    ("road", {}, 6 * 256),
    ("road", {"variant": "road_4"}, 6 * 1024),
    ("osf", {"effective_rank": 192}, 3 * 64 * (4 * 513 + 3 * (256 + 688 + 1))),
    ("oft", {}, 6 * 8 * 32 * 31 // 2),
    ("oft", {"block_share": True}, 6 * 32 * 31 // 2),
    ("boft", {"boft_block_num": 8}, 6 * (8 * 32 * 32 + 256)),
    ("lokr", {"r": 4}, 6 * (16 * 16 + 4 * 32)),
    ("cpt", {"num_virtual_tokens": 8}, 8 * 256),
    ("multitask-prompt-tuning", {"num_virtual_tokens": 8, "num_tasks": 3, "num_ranks": 2}, 8 * 256 + 6 * (8 + 256)),
    ("cartridge", {"num_virtual_tokens": 8}, 7 * 3 * 2 * 256),
    ("prefix-tuning", {"num_virtual_tokens": 8, "prefix_projection": True, "encoder_hidden_size": 16},
     8 * 256 + 16 * 257 + 6 * 256 * 17),
]  # fmt: skip


@pytest.mark.parametrize(("method", "settings", "weights"), FORMULAS)
def test_other_methods_train_what_the_formula_of_their_layers_gives(method, settings, weights):
    assert weights == trained_weights(SMALL, method, settings)


def test_the_encoder_of_p_tuning_is_as_large_as_torch_makes_it():
    nn = pytest.importorskip("torch").nn
    inner = 24
    lstm = nn.LSTM(256, inner, num_layers=3, bidirectional=True)
    head = nn.Sequential(nn.Linear(2 * inner, 2 * inner), nn.ReLU(), nn.Linear(2 * inner, 256))
    expected = 8 * 256 + sum(weight.numel() for module in (lstm, head) for weight in module.parameters())
    settings = {"num_virtual_tokens": 8, "encoder_reparameterization_type": "LSTM", "encoder_hidden_size": inner,
                "encoder_num_layers": 3}  # fmt: skip
    assert expected == trained_weights(SMALL, "p-tuning", settings)


def adapted(expanded, method, *, targets=(), batch=1, sequence=512, **settings):
    adapters = Adapters(method=method, targets=targets, settings=tuple(settings.items()))
    return expanded(SMALL, batch=batch, sequence=sequence, adapters=adapters).step


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_a_step_whose_gradients_and_states_are_those_of_its_weights(expanded, method):
    step = adapted(expanded, method, sequence=64)
    trained = trained_weights(SMALL, method, {})
    held = {
        category: sum(event.size_bytes for event in step.events if event.category is category and event.size_bytes > 0)
        for category in (StorageCategory.OPTIMIZER_STATE, StorageCategory.GRADIENT)
    }
    width = 2 if method == "ln-tuning" else 4
    assert 2 * width * trained == held[StorageCategory.OPTIMIZER_STATE]
    assert width * trained <= held[StorageCategory.GRADIENT]
    assert step.trained_bytes == width * trained


def test_a_prompt_before_the_input_lengthens_the_sequence(expanded):
    prompt = adapted(expanded, "prompt-tuning", num_virtual_tokens=128)
    longer = adapted(expanded, "ia3", sequence=640, targets=("k_proj",))
    # The prompt's gradient passes through the first layer, too.
    assert flops(prompt, OpKind.GEMM) == pytest.approx(flops(longer, OpKind.GEMM), rel=0.05)
    assert peak(prompt) == pytest.approx(peak(longer), rel=0.02)


def test_a_prefix_lengthens_the_keys_and_not_the_logits(expanded):
    plain, prefix = (adapted(expanded, *method) for method in (("ia3",), ("prefix-tuning",)))
    attended = [{op.dims["kv"] for op in step.ops if op.kind is OpKind.ATTENTION} for step in (plain, prefix)]
    assert attended == [{512}, {532}]
    assert flops(prefix, OpKind.GEMM) == pytest.approx(flops(plain, OpKind.GEMM), rel=0.05)


def test_vectors_add_no_products_and_low_rank_adapters_do(expanded):
    vectors, low_rank = adapted(expanded, "ia3"), adapted(expanded, "lora")
    assert flops(low_rank, OpKind.GEMM) > flops(vectors, OpKind.GEMM)


def test_a_whole_update_is_held_until_the_backward_pass(expanded):
    update, low_rank = (adapted(expanded, method, sequence=16) for method in ("loha", "lora"))
    assert peak(update) - peak(low_rank) >= 6 * 256 * 256 * 4


def test_frozen_factors_save_no_source(expanded):
    """VeRA's frozen first factor needs no copy of its source; LoRA's needs one in each adapted layer."""
    vera, lora = (adapted(expanded, method, batch=8, targets=("down_proj",)) for method in ("vera", "lora"))
    assert peak(lora) > peak(vera)


def test_dropout_keeps_a_mask_of_a_byte_for_each_input(expanded):
    plain, dropped = (
        adapted(expanded, "lora", batch=8, targets=("down_proj",), lora_dropout=rate) for rate in (0.0, 0.1)
    )
    assert 2 * 8 * 512 * 688 <= peak(dropped) - peak(plain) <= 4 * 8 * 512 * 688


@pytest.mark.parametrize("method", ["boft", "oft", "dora", "loha", "ia3", "vera"])
def test_methods_run_on_weights_in_four_bits(expanded, method):
    adapters = Adapters(method=method, targets=())
    step = expanded(SMALL, sequence=64, adapters=adapters, quantization=Quantization.NF4).step
    assert any(op.name == "aten.dequantize" for op in step.ops)


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        (("q_proj",), 3), (("all-linear",), 21), (("c_attn",), 0), (("query", "fc1"), 6), (("mlp.down_proj",), 3),
        ((r"re:(?:.*\.(q|k)_proj)$",), 6), ((r"re:(?:model\.layers\.[01]\.self_attn\.v_proj)$",), 2),
        ((r"re:(?:q_proj)$",), 0),
    ],
)  # fmt: skip
def test_layers_are_chosen_by_name_and_by_expression(targets, layers):
    plan = AdapterPlan(Adapters(8, targets=targets))
    builder = ModelBuilder(Tape(), "bfloat16", adapters=plan)
    TransformerModel(builder, read_model_shape(SMALL, "config.json")[0])
    assert 2 * layers == len(builder.tape.parameters)


def test_a_target_without_a_layer_is_refused_with_the_layers_there_are(expanded):
    with pytest.raises(InvalidInput, match=r"c_attn matches no layer of .*: its layers are down_proj, gate_proj"):
        expanded(SMALL, sequence=8, adapters=Adapters(8, targets=("c_attn",)))


def test_a_note_counts_the_trained_weights_and_names_their_layers(expanded):
    notes = expanded(SMALL, sequence=8, adapters=Adapters(method="ia3", targets=())).notes
    assert any("ia3 trains 3,600 weights: down_proj, k_proj, v_proj" in note for note in notes)


@pytest.mark.parametrize(
    ("adapters", "error", "message"),
    [
        (Adapters(method="bot"), UnknownName, "did you mean 'boft'"),
        (Adapters(method="xlora"), InvalidInput, "not estimated"),
        (Adapters(8, method="ia3"), InvalidInput, "has none"),
        (Adapters(settings=(("rank", 8),)), UnknownName, "setting of lora"),
        (Adapters(settings=(("r", 0),)), InvalidInput, "r=0, but it must be a whole number from 1"),
        (Adapters(settings=(("lora_dropout", 2),)), InvalidInput, "from 0 to 1"),
        (Adapters(method="boft", settings=(("boft_block_size", 7),)), InvalidInput, "a divisor of 256"),
        (Adapters(method="road", settings=(("variant", "road_3"),)), InvalidInput, "one of road_1, road_2, road_4"),
        (Adapters(targets=("re:((",)), InvalidInput, "--lora-targets"),
    ],
)
def test_an_unknown_method_or_setting_is_refused_in_one_sentence(expanded, adapters, error, message):
    with pytest.raises(error, match=message):
        expanded(SMALL, sequence=8, adapters=adapters)


def held_bytes(step, category):
    return sum(event.size_bytes for event in step.events if event.category is category and event.size_bytes > 0)


def test_without_autocast_products_of_float32_adapters_are_in_float32(expanded):
    settings = {"r": 16, "targets": ("q_proj",)}
    types = [
        {op.dtype for op in adapted(expanded, "lora", **settings, autocast=autocast).ops
         if op.kind is OpKind.GEMM and 16 in (op.dims["n"], op.dims["k"])}
        for autocast in (True, False)
    ]  # fmt: skip
    assert types == [{"bfloat16"}, {"float32"}]


def test_adapters_may_have_the_type_of_the_weights(expanded):
    wide, narrow = (adapted(expanded, "lora", autocast_adapter_dtype=widened) for widened in (True, False))
    assert wide.trained_bytes == 2 * narrow.trained_bytes


def test_deepspeed_holds_float32_copies_and_two_buckets_of_gradients(expanded):
    step = adapted(expanded, "lora", deepspeed=True, reduce_bucket_size=10**6)
    weights = 6 * 8 * 512
    assert step.trained_bytes == 2 * weights
    assert held_bytes(step, StorageCategory.OPTIMIZER_STATE) == 3 * 4 * weights
    assert held_bytes(step, StorageCategory.GRADIENT) == 2 * weights + 2 * 2 * 10**6
    notes = expanded(SMALL, sequence=8, adapters=Adapters(8, settings=(("deepspeed", True),))).notes
    note = next(note for note in notes if "trains" in note)
    assert note.endswith("bfloat16, with float32 copies in the optimizer")


GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}


def test_autograd_saves_the_unpacked_weights_of_gptq_and_not_of_awq(expanded):
    """Seven products of a layer hold their weights in 16 bits until the backward pass."""
    peaks = [peak(expanded({**SMALL, **form}, sequence=16, adapters=Adapters(8)).step) for form in (GPTQ, AWQ)]
    unpacked = 2 * 3 * (4 * 256 * 256 + 3 * 256 * 688)
    widened = 2 * 2 * 256 * 1000  # embedding and output layer, in float32 beside AWQ
    assert peaks[0] - peaks[1] + widened > 0.7 * unpacked


def test_peft_leaves_the_other_weights_in_16_bits_beside_gptq(expanded):
    tables = 2 * 256 * 1000
    gptq, awq = (expanded({**SMALL, **form}, sequence=16, adapters=Adapters(8)) for form in (GPTQ, AWQ))
    assert awq.step.parameter_bytes - gptq.step.parameter_bytes == pytest.approx(2 * tables, rel=0.1)
    assert not any("not quantized but in float32" in note for note in gptq.notes)


def test_qwens_first_generation_halves_its_gated_block_and_copies_its_scores(expanded):
    qwen = {"model_type": "qwen", "hidden_size": 256, "intermediate_size": 1376, "num_hidden_layers": 3,
            "num_attention_heads": 8, "vocab_size": 1000, "seq_length": 4096}  # fmt: skip
    step = expanded(qwen, sequence=512).step
    biases = 3 * 3 * 256
    assert step.parameters == expanded(SMALL, sequence=512).step.parameters + biases
    copied = [op for op in step.ops if op.name == "aten.clone" and op.outputs[0].shape[-1] == 1000]
    assert len(copied) == 1
