"""An expanded configuration does the arithmetic and holds the memory of the published implementation."""

import json
import math
import sys
from collections import Counter

import pytest

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.graph import OpKind, Stage, StorageCategory
from leadline.core.workload import (
    AttentionImplementation,
    Lengths,
    ModelKind,
    ModelSource,
    Optimizer,
    Phase,
    Precision,
    Workload,
)
from leadline.estimators.memory.workspaces import attention_scratch_bytes
from leadline.graphs.hf_config.expand import expand
from leadline.graphs.hf_config.tape import Tape
from tests.graphs.hf_config.conftest import LLAMA_7B, SMALL, flops, peak

MATRIX = (OpKind.GEMM, OpKind.ATTENTION, OpKind.CONV)


def test_llama_2_7b_has_its_published_parameters(expanded):
    assert expanded(LLAMA_7B, sequence=16).step.parameters == 6_738_415_616


def test_backward_multiplies_twice_as_much_as_forward(expanded):
    step = expanded(SMALL).step
    assert 2 * flops(step, OpKind.GEMM, stage=Stage.FORWARD) == flops(step, OpKind.GEMM, stage=Stage.BACKWARD)


def test_a_llama_7b_step_is_six_operations_per_weight_and_token_without_attention(expanded):
    step = expanded(LLAMA_7B, sequence=2048).step
    looked_up = 32000 * 4096
    assert pytest.approx(6 * (6_738_415_616 - looked_up) * 2048, rel=0.001) == flops(step, OpKind.GEMM)


def test_mixed_precision_adamw_holds_at_least_twenty_bytes_per_parameter(expanded):
    """Four each for weight, gradient and two moments, and four for the square roots of the foreach update."""
    step = expanded(LLAMA_7B, precision=Precision.AMP_BF16, sequence=512).step
    assert pytest.approx(20, rel=0.01) == peak(step) / step.parameters


def test_memory_allocated_within_a_step_is_freed_at_its_end(expanded):
    events = expanded(SMALL).step.events
    live_bytes = Counter()
    for event in events:
        live_bytes[event.storage] += event.size_bytes
    assert {0} == {left for number, left in live_bytes.items() if left < 0} | {0}
    kept = {event.category for event in events if live_bytes[event.storage] > 0}
    assert {StorageCategory.PARAMETER, StorageCategory.OPTIMIZER_STATE} == kept


def test_no_storage_is_freed_before_its_allocation(expanded):
    live = Counter()
    for event in expanded(SMALL, accumulation=3, checkpointing=True).step.events:
        live[event.storage] += event.size_bytes
        assert live[event.storage] >= 0


def test_checkpointing_recomputes_the_layers_and_holds_less(expanded):
    settings = {"batch": 8, "sequence": 512, "optimizer": Optimizer.SGD}
    plain, saving = (expanded(SMALL, checkpointing=on, **settings).step for on in (False, True))
    assert peak(saving) < 0.7 * peak(plain)
    layers = flops(plain, *MATRIX, stage=Stage.FORWARD) - 2 * 8 * 512 * 256 * 1000
    assert flops(plain, *MATRIX) + layers == flops(saving, *MATRIX)


def test_accumulation_repeats_forward_and_backward_but_not_the_update(expanded):
    once, thrice = (expanded(SMALL, accumulation=times).step for times in (1, 3))
    assert 3 * flops(once, *MATRIX) == flops(thrice, *MATRIX)
    assert flops(once, OpKind.OPTIMIZER) == flops(thrice, OpKind.OPTIMIZER)


def test_inference_keeps_no_activations_but_the_keys_and_values(expanded):
    step = expanded(SMALL, phase=Phase.INFERENCE, precision=Precision.BF16, batch=1, sequence=256).step
    assert {Stage.FORWARD} == {op.stage for op in step.ops}
    weights, cache, logits = 2 * step.parameters, 3 * 2 * 256 * 256 * 2, 256 * 1000 * 2
    assert weights + cache + logits <= peak(step) <= weights + cache + logits + 8 * 256 * 688 * 2


def test_a_sliding_window_cuts_the_arithmetic_of_attention(expanded):
    mistral = {**SMALL, "model_type": "mistral"}
    full, cut = (expanded({**mistral, "sliding_window": size}, sequence=1024).step for size in (4096, 128))
    assert flops(full, OpKind.ATTENTION) / 4 == flops(cut, OpKind.ATTENTION)


def test_a_tied_embedding_has_one_gradient(expanded):
    tied = expanded({**SMALL, "tie_word_embeddings": True}, optimizer=Optimizer.SGD).step
    free = expanded(SMALL, optimizer=Optimizer.SGD).step
    assert free.parameters - tied.parameters == 256 * 1000
    assert any(op.name == "aten.add_" and op.inputs[0].shape == (1000, 256) for op in tied.ops)


def test_experts_cost_the_arithmetic_of_used_ones_and_the_memory_of_all(expanded):
    moe = {**SMALL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    step, dense = expanded(moe, batch=4, sequence=128).step, expanded(SMALL, batch=4, sequence=128).step
    assert step.parameters - dense.parameters == 3 * 7 * 3 * 256 * 688 + 3 * 8 * 256
    extra = 3 * 6 * 512 * (3 * 256 * 688 + 8 * 256)
    assert extra == flops(step, OpKind.GEMM) - flops(dense, OpKind.GEMM)


def test_defaults_are_named(expanded):
    assert any("batch 1" in note and "sequence 2048" in note for note in expanded(LLAMA_7B).notes)


def test_a_causal_model_keeps_its_cache_until_the_loss_is_known_but_not_under_checkpointing(expanded):
    """Keys and values are copied into it: each with its heads apart, as attention takes them."""
    settings = {"batch": 2, "sequence": 64, "precision": Precision.BF16}
    for checkpointing in (False, True):
        ops = expanded(SMALL, checkpointing=checkpointing, **settings).step.ops
        copied = [op.count for op in ops if op.name == "aten.cat" and op.outputs[0] == op.inputs[0]
                  and op.outputs[0].shape == (2, 8, 64, 32) and op.stage is Stage.FORWARD]  # fmt: skip
        rotated = 3 * 2
        assert rotated + 3 * 2 * (not checkpointing) == sum(copied)


def test_heads_that_share_keys_hold_their_scores_in_float32_only(expanded):
    """CUDA's memory-efficient kernel takes no grouped heads; flash attention, for half precision, does."""
    grouped = {**SMALL, "num_key_value_heads": 2}
    scores = (2, 8, 512, 512)
    for precision, is_held in ((Precision.FP32, True), (Precision.BF16, False)):
        ops = expanded(grouped, batch=2, sequence=512, precision=precision).step.ops
        assert is_held == any(spec.shape == scores for op in ops for spec in op.outputs)


@pytest.mark.parametrize(("precision", "name"), [(Precision.FP32, "efficient"), (Precision.BF16, "flash")])
def test_fused_attention_saves_its_sums_and_takes_scratch_in_its_backward_pass(expanded, precision, name):
    step = expanded(SMALL, batch=2, sequence=500, precision=precision).step
    forward, backward = (
        next(op for op in step.ops if op.kind is OpKind.ATTENTION and op.stage is stage)
        for stage in (Stage.FORWARD, Stage.BACKWARD)
    )
    sums = (2, 8, 512 if name == "efficient" else 500)
    assert (sums, "float32") == (forward.outputs[1].shape, forward.outputs[1].dtype)
    kept = [event for event in step.events if event.size_bytes == 4 * math.prod(sums)]
    given_back = {event.storage: event.op for event in step.events if event.size_bytes < 0}
    assert len(kept) >= 3
    assert all(given_back[event.storage] > step.ops.index(backward) for event in kept)
    assert f"aten._scaled_dot_product_{name}_attention_backward" == backward.name
    tiles = {"flash": 512 * (1 + 32), "efficient": 500 + 8 * (64 * 64 + 4)}
    assert 4 * 2 * 8 * tiles[name] == attention_scratch_bytes(backward, "nvidia")


def test_results_are_allocated_just_before_an_op_and_inputs_freed_after_it():
    tape = Tape()
    first = tape.new((3,), "float32")
    tape.op("fill_", OpKind.COPY, [], [first])
    second = tape.new((5,), "float32")
    tape.op("cat", OpKind.COPY, [first], [second])
    del first
    assert [(event.op, event.size_bytes) for event in tape.events] == [(0, 12), (1, 20), (2, -12)]


def test_an_encoder_and_its_decoder_see_equally_many_tokens_with_a_note(expanded):
    job = expanded({"model_type": "t5"}, batch=2, sequence=64, attention=AttentionImplementation.SDPA)
    assert any("a target as long as the source" in note for note in job.notes)
    assert {64} == {op.dims["q"] for op in job.step.ops if op.kind is OpKind.ATTENTION}


def test_speech_has_its_own_length_and_its_positions_are_not_trained(expanded):
    whisper = {"model_type": "whisper"}
    step = expanded(whisper, batch=2, sequence=32, optimizer=Optimizer.ADAMW, precision=Precision.FP32).step
    assert {(1500, 1500), (32, 32), (32, 1500)} == {
        (op.dims["q"], op.dims["kv"]) for op in step.ops if op.kind is OpKind.ATTENTION
    }
    events = [event for event in step.events if event.size_bytes > 0]
    weights, states = (
        sum(event.size_bytes for event in events if event.category is kind)
        for kind in (StorageCategory.PARAMETER, StorageCategory.OPTIMIZER_STATE)
    )
    assert 2 * (weights - 1500 * 384 * 4) == states
    assert expanded(whisper).loop.bytes_per_sample is None


def test_a_sequence_beyond_learned_positions_is_refused(expanded):
    with pytest.raises(InvalidInput, match="1024"):
        expanded({"model_type": "gpt2"}, sequence=2048)


@pytest.mark.parametrize(("text", "message"), [("{", "not JSON"), ("[]", "no object"), ('{"a": 1}', "model_type")])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        expand(Workload(ModelSource(ModelKind.HF_CONFIG, str(path))))


def test_an_unknown_architecture_is_refused_with_the_close_ones(expanded):
    with pytest.raises(UnknownName, match="mistral"):
        expanded({"model_type": "mistrall"})


SCRIPT = """
import json, sys, torch, transformers
family, auto, sizes, autocast = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4] == "amp-bf16"
config = transformers.AutoConfig.for_model(family, **sizes)
model = getattr(transformers, auto).from_config(config, attn_implementation=sys.argv[5])
model = model.to(torch.bfloat16 if sys.argv[4] == "bf16" else torch.float32).cuda().train()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    tokens = torch.zeros(4, 320, dtype=torch.long, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LIKE_LLAMA = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 8000}  # fmt: skip
TRACED = [
    ("llama", "AutoModelForCausalLM", LIKE_LLAMA, Precision.FP32),
    ("llama", "AutoModelForCausalLM", LIKE_LLAMA, Precision.AMP_BF16),
    ("gpt2", "AutoModelForCausalLM", {"n_layer": 2, "n_embd": 256, "n_head": 4}, Precision.FP32),
    ("bert", "AutoModelForMaskedLM", {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4,
                                      "intermediate_size": 1024}, Precision.AMP_BF16),
    ("deberta-v2", "AutoModelForMaskedLM", {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4,
                                            "intermediate_size": 1024, "vocab_size": 8000, "relative_attention": True,
                                            "pos_att_type": ["c2p", "p2c"], "position_buckets": 64}, Precision.FP32),
    ("t5", "AutoModelForSeq2SeqLM", {"num_layers": 2, "d_model": 256, "d_kv": 64, "num_heads": 4, "d_ff": 1024,
                                     "vocab_size": 8000, "decoder_start_token_id": 0}, Precision.AMP_BF16),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("family", "auto", "sizes", "precision"), TRACED)
def test_the_formula_agrees_with_a_trace_of_the_implementation(tmp_path, expanded, family, auto, sizes, precision):
    kernel = "eager" if family == "deberta-v2" else "sdpa"
    traced, mine = trace_and_expand(tmp_path, expanded, family, auto, sizes, precision, kernel)
    assert traced.parameters == mine.parameters
    assert pytest.approx(flops(traced, *MATRIX), rel=0.001) == flops(mine, *MATRIX)
    assert pytest.approx(peak(traced), rel=0.02) == peak(mine)


GEMMA = {**LIKE_LLAMA, "head_dim": 64, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128}
EAGER = [
    ("llama", "AutoModelForCausalLM", LIKE_LLAMA, Precision.BF16),
    ("llama", "AutoModelForCausalLM", LIKE_LLAMA, Precision.AMP_BF16),
    ("gemma2", "AutoModelForCausalLM", GEMMA, Precision.BF16),
    ("gpt2", "AutoModelForCausalLM", {"n_layer": 2, "n_embd": 256, "n_head": 4}, Precision.FP32),
    ("bert", "AutoModelForMaskedLM", {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4,
                                      "intermediate_size": 1024}, Precision.AMP_BF16),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("family", "auto", "sizes", "precision"), EAGER)
def test_eager_attention_has_the_work_and_memory_of_a_trace(tmp_path, expanded, family, auto, sizes, precision):
    traced, mine = trace_and_expand(tmp_path, expanded, family, auto, sizes, precision, "eager")
    assert pytest.approx(flops(traced, *MATRIX), rel=0.001) == flops(mine, *MATRIX)
    for work in (score_bytes, score_kernels):
        assert pytest.approx(work(traced), rel=0.03) == work(mine)
    assert pytest.approx(peak(traced), rel=0.02) == peak(mine)


SEQUENCE = 320
"""Tokens of a sample, unlike any width of these models."""


def score_ops(graph):
    """Return the ops with the scores of all pairs of tokens."""
    return [op for op in graph.ops if any(spec.shape[-2:] == (SEQUENCE,) * 2 for spec in (*op.inputs, *op.outputs))]


def score_bytes(graph):
    return sum((op.bytes_read + op.bytes_written) * op.count for op in score_ops(graph))


def score_kernels(graph):
    return sum(op.kernels * op.count for op in score_ops(graph))


def trace_and_expand(tmp_path, expanded, family, auto, sizes, precision, kernel):
    """Return the graph of a script that trains the model, and that of its configuration with this attention."""
    transformers = pytest.importorskip("transformers", reason="traces Hugging Face's implementations")
    from leadline.graphs.torch.trace import trace_command
    from tests.support.forked_python import run_forked

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    argv = (sys.executable, str(script), family, auto, json.dumps(sizes), precision.value, kernel)
    traced = trace_command(Workload(ModelSource(ModelKind.COMMAND, " ".join(argv), argv)), runner=run_forked).step
    config = {**transformers.AutoConfig.for_model(family, **sizes).to_dict(), "_attn_implementation": kernel}
    return traced, expanded(config, batch=4, sequence=SEQUENCE, precision=precision).step


def test_the_longest_batch_is_expanded_beside_a_mean_one(expanded):
    mean, longest = (expanded(SMALL, sequence=length) for length in (64, 512))
    both = expanded(SMALL, sequence=64, longest=512)
    assert mean.step.flops == both.step.flops
    assert longest.step.flops == both.largest_step.flops
    assert any("64 tokens per sample" in note and "512" in note for note in both.notes)


def test_lengths_make_a_larger_batch_longer_in_the_mean(expanded):
    lengths = Lengths((10, 10, 10, 90), 90)
    single, many = (expanded(SMALL, batch=batch, lengths=lengths, longest=90) for batch in (1, 8))
    assert 8 * single.step.flops < many.step.flops
    assert [job.largest_step.ops[0].inputs[1].shape[1] for job in (single, many)] == [90, 90]


def test_a_longest_batch_beyond_the_learned_positions_is_refused(expanded):
    with pytest.raises(InvalidInput, match="--seq-max 4096"):
        expanded({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 1, "vocab_size": 100}, longest=4096)
