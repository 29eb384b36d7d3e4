"""Adapters beside frozen weights do the arithmetic and hold the memory of a step that trains them."""

import json
import sys

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.graph import OpKind, Stage, StorageCategory
from leadline.core.workload import Adapters, ModelKind, ModelSource, Optimizer, Precision, Quantization, Workload
from tests.graphs.hf_config.conftest import LLAMA_7B, SMALL, flops, peak

LAYERS_7B = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
LORA = Adapters(8)


def bytes_of(graph, category):
    return sum(event.size_bytes for event in graph.events if event.category is category and event.size_bytes > 0)


def adapter_weights(rank):
    return 32 * rank * (4 * (4096 + 4096) + 3 * (4096 + 11008))


def test_adapters_of_rank_eight_on_all_linear_layers_of_llama_7b_are_twenty_million_weights(expanded):
    step = expanded(LLAMA_7B, sequence=16, adapters=LORA).step
    assert 19_988_480 == adapter_weights(8) == step.parameters - 6_738_415_616
    assert 4 * adapter_weights(8) == step.trained_bytes


def test_only_adapters_have_gradients_and_states(expanded):
    step = expanded(LLAMA_7B, sequence=16, adapters=LORA, optimizer=Optimizer.ADAMW).step
    assert 2 * 4 * adapter_weights(8) == bytes_of(step, StorageCategory.OPTIMIZER_STATE)
    assert 4 * adapter_weights(8) == bytes_of(step, StorageCategory.GRADIENT)


def test_products_of_frozen_weights_have_no_gradient_but_that_of_their_input(expanded):
    full, adapted = (expanded(LLAMA_7B, sequence=1024, adapters=adapters).step for adapters in (None, Adapters(1)))
    assert pytest.approx(2 / 3, abs=0.01) == flops(adapted, OpKind.GEMM) / flops(full, OpKind.GEMM)


def test_embedding_and_output_layer_are_copied_to_be_trained(expanded):
    plain, more = (expanded(SMALL, adapters=Adapters(8, embeddings=embeddings)).step for embeddings in (False, True))
    tables = 2 * 256 * 1000
    assert tables == more.parameters - plain.parameters
    assert 2 * tables == more.trained_bytes - plain.trained_bytes
    looked_up = "aten.embedding_dense_backward"
    assert [any(op.name == looked_up for op in step.ops) for step in (plain, more)] == [False, True]


def test_four_bit_weights_take_4_127_bits_each_and_all_others_are_float32(expanded):
    step = expanded(LLAMA_7B, sequence=16, adapters=LORA, quantization=Quantization.NF4).step
    other_weights = 6_738_415_616 - LAYERS_7B
    assert 6_738_415_616 + adapter_weights(8) == step.parameters
    assert pytest.approx(4.127 / 8 * LAYERS_7B, rel=1e-4) == step.parameter_bytes - 4 * (
        other_weights + adapter_weights(8)
    )


def test_eight_bit_weights_take_a_byte_each_and_a_scale_per_row(expanded):
    step = expanded(LLAMA_7B, sequence=16, adapters=LORA, quantization=Quantization.INT8).step
    other_weights, rows = 6_738_415_616 - LAYERS_7B, 32 * (5 * 4096 + 2 * 11008)
    assert LAYERS_7B + 4 * rows == step.parameter_bytes - 4 * (other_weights + adapter_weights(8))


@pytest.mark.parametrize("bits", list(Quantization))
def test_quantized_weights_multiply_as_often_as_others(expanded, bits):
    plain, packed = (expanded(SMALL, adapters=LORA, quantization=quantization).step for quantization in (None, bits))
    assert flops(plain, OpKind.GEMM) == flops(packed, OpKind.GEMM)


def test_dequantized_weights_are_freed_after_their_product(expanded):
    """Beside what is held anyway, a product's weight at most is there in sixteen bits."""
    wide = {**SMALL, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "vocab_size": 64}
    step = expanded(wide, adapters=LORA, quantization=Quantization.NF4, sequence=8, optimizer=Optimizer.SGD).step
    unpacked = 2 * 2048 * 8192
    assert unpacked < peak(step) - step.parameter_bytes < 1.5 * unpacked


def test_a_state_in_eight_bits_takes_a_byte_and_a_scale_for_256(expanded):
    step = expanded(SMALL, optimizer=Optimizer.ADAMW_8BIT, sequence=16).step
    norms = 7 * 256
    large = step.parameters - norms
    assert 2 * (large + 4 * large // 256 + 4 * norms) == bytes_of(step, StorageCategory.OPTIMIZER_STATE)


def test_a_paged_state_is_not_on_the_device_and_has_a_note(expanded):
    job = expanded(SMALL, optimizer=Optimizer.PAGED_ADAMW_8BIT)
    assert bytes_of(job.step, StorageCategory.OPTIMIZER_STATE) == 0
    assert any("paged" in note for note in job.notes)
    assert any(op.stage is Stage.OPTIMIZER for op in job.step.ops)


def test_sounds_and_images_are_not_adapted(expanded):
    with pytest.raises(InvalidInput, match="--lora"):
        expanded({"model_type": "whisper"}, adapters=LORA)


def test_experts_are_frozen_and_attention_is_adapted(expanded):
    moe = {**SMALL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    kv = 256 // 8 * 8
    each = 2 * (256 + 256) + 2 * (256 + kv)
    assert 4 * 3 * 8 * each == expanded({**moe, "num_key_value_heads": 8}, adapters=LORA).step.trained_bytes


SCRIPT = """
import json, sys, torch, transformers
from torch import nn

class Adapted(nn.Module):  # as peft runs it
    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, device="cuda", dtype=torch.float32)
        self.up = nn.Linear(rank, base.out_features, bias=False, device="cuda", dtype=torch.float32)

    def forward(self, x):
        result = self.base(x)
        kept = result.dtype
        x = x.to(self.down.weight.dtype)
        result = result + self.up(self.down(x)) * 0.5
        return result.to(kept)

sizes, half, saving = json.loads(sys.argv[1]), sys.argv[2] == "bf16", sys.argv[3] == "saving"
config = transformers.AutoConfig.for_model("llama", **sizes)
model = transformers.AutoModelForCausalLM.from_config(config).cuda().train()
if half:
    model.to(torch.bfloat16)
for one in model.parameters():
    one.requires_grad_(False)
for layer in model.model.layers:
    for block, names in ((layer.self_attn, "q_proj k_proj v_proj o_proj"), (layer.mlp, "gate_proj up_proj down_proj")):
        for name in names.split():
            setattr(block, name, Adapted(getattr(block, name), 16))
if saving:
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
for _ in range(5):
    tokens = torch.zeros(4, 256, dtype=torch.long, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LIKE_LLAMA = {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4,
              "vocab_size": 1000}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("saving", [False, True])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_the_formula_agrees_with_a_trace_of_adapters_written_by_hand(tmp_path, expanded, precision, saving):
    """Under checkpointing the trace's attention takes a mask and no causal shortcut: its peak is a little higher."""
    transformers = pytest.importorskip("transformers", reason="traces Hugging Face's implementation")
    from leadline.graphs.torch.trace import trace_command
    from tests.support.forked_python import run_forked

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    argv = (sys.executable, str(script), json.dumps(LIKE_LLAMA), precision.value, "saving" if saving else "plain")
    traced = trace_command(Workload(ModelSource(ModelKind.COMMAND, " ".join(argv), argv)), runner=run_forked).step
    config = transformers.AutoConfig.for_model("llama", **LIKE_LLAMA).to_dict()
    settings = {"precision": precision, "adapters": Adapters(16), "checkpointing": saving}
    mine = expanded(config, batch=4, sequence=256, **settings).step
    assert traced.parameters == mine.parameters
    assert pytest.approx(flops(traced, OpKind.GEMM), rel=0.005) == flops(mine, OpKind.GEMM)
    assert pytest.approx(peak(traced), rel=0.06 if saving else 0.03) == peak(mine)
