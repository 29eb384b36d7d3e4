"""Readers of model files: HLO, StableHLO, config.json and ONNX."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.trust.mutations import Form
from benchmarks.trust.readers import Reader, texts
from leadline.core.workload import ModelKind, ModelSource, Phase, Workload
from leadline.graphs.hf_config.expand import expand
from leadline.graphs.hlo.read import read_hlo
from leadline.graphs.onnx.read import read_onnx
from tests.graphs.hlo import texts as modules

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
    "vocab_size": 1000, "max_position_embeddings": 256, "num_key_value_heads": 2, "attention_dropout": 0.1,
    "torch_dtype": "bfloat16", "rope_parameters": {"partial_rotary_factor": 0.5}, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 500,
    "max_position_embeddings": 128,
}  # fmt: skip
CONFIGS = (
    LLAMA,
    {**SIZES, "model_type": "qwen2_moe", "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
     "shared_expert_intermediate_size": 64, "mlp_only_layers": [0], "decoder_sparse_step": 1},
    {**SIZES, "model_type": "deepseek_v3", "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 16,
     "qk_rope_head_dim": 8, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
     "first_k_dense_replace": 1, "n_shared_experts": 1},
    {**SIZES, "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 32, "sliding_window_pattern": 2,
     "layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True},
    {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128, "vocab_size": 500, "n_inner": None},
    {**SIZES, "model_type": "bert", "type_vocab_size": 2, "architectures": ["BertForSequenceClassification"],
     "id2label": {"0": "a", "1": "b"}},
    {**SIZES, "model_type": "deberta-v2", "pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1,
     "position_buckets": 16, "relative_attention": True, "norm_rel_ebd": "layer_norm"},
    {**SIZES, "model_type": "modernbert", "global_attn_every_n_layers": 2, "local_attention": 16},
    {**SIZES, "model_type": "vit", "image_size": 32, "patch_size": 8, "num_channels": 3},
    {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 500,
     "feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 8},
    {"model_type": "whisper", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
     "decoder_attention_heads": 4, "vocab_size": 500, "num_mel_bins": 8, "max_source_positions": 16},
    {"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 500,
     "new_decoder_architecture": True, "num_kv_heads": 2},
    {**SIZES, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "moe_layers": [0, 1],
     "text_config": {"model_type": "llama", **SIZES}},
)  # fmt: skip
STEPPED = modules.LOOP.replace("START", "0").replace("LIMIT", "%c_1").replace("STEP", "1")
CONVOLVED = modules.CONV.replace("OUT", "8x16x16x64").replace("D", "1")
STABLEHLO = (modules.MLP, modules.GENERIC, STEPPED, CONVOLVED, modules.ADAM)
HLO_FEATURES = """
HloModule jit_g, num_partitions=2

%body (p: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %p = (s32[], f32[8,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[8,8]{1,0} get-tuple-element(%p), index=1
  %y = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %out = (s32[], f32[8,8]{1,0}) tuple(%next, %y)
}

%cond (q: (s32[], f32[8,8])) -> pred[] {
  %q = (s32[], f32[8,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(%j, %ten), direction=LT
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%wide (w: f32[8,8]) -> f32[8,8] {
  %w = f32[8,8]{1,0} parameter(0)
  ROOT %tanh = f32[8,8]{1,0} tanh(%w)
}

ENTRY %main (x: f32[8,8], image: f32[2,8,8,4], kernel: f32[3,3,4,16], at: s32[4,1]) -> (f32[8,8], f32[8], f32[2,4,4,16], f32[4,8]) {
  %x = f32[8,8]{1,0} parameter(0)
  %image = f32[2,8,8,4]{3,2,1,0} parameter(1)
  %kernel = f32[3,3,4,16]{3,2,1,0} parameter(2)
  %at = s32[4,1]{1,0} parameter(3)
  %zero = s32[] constant(0)
  %state = (s32[], f32[8,8]{1,0}) tuple(%zero, %x)
  %loop = (s32[], f32[8,8]{1,0}) while(%state), condition=%cond, body=%body
  %last = f32[8,8]{1,0} get-tuple-element(%loop), index=1
  %flag = pred[] compare(%zero, %zero), direction=EQ
  %either = f32[8,8]{1,0} conditional(%flag, %last, %last), true_computation=%wide, false_computation=%wide
  %init = f32[] constant(0)
  %total = f32[8]{0} reduce(%either, %init), dimensions={1}, to_apply=%sum
  %conv = f32[2,4,4,16]{3,2,1,0} convolution(%image, %kernel), window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  %rows = f32[4,8]{1,0} gather(%x, %at), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
  %part = f32[4,8]{1,0} dynamic-slice(%x, %zero, %zero), dynamic_slice_sizes={4,8}
  %set = f32[8,8]{1,0} dynamic-update-slice(%x, %part, %zero, %zero)
  %pool = f32[2,4,4,4]{3,2,1,0} reduce-window(%image, %init), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=%sum
  %scatter = f32[8,8]{1,0} scatter(%set, %at, %rows), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%sum
  %fft = c64[8,8]{1,0} fft(%scatter), fft_type=FFT, fft_length={8}
  ROOT %all = (f32[8,8]{1,0}, f32[8]{0}, f32[2,4,4,16]{3,2,1,0}, f32[4,8]{1,0}) tuple(%scatter, %total, %conv, %rows)
}
"""


def onnx_corpus() -> tuple[bytes, ...]:
    """Return a small convolutional net, and a graph that computes a shape."""
    if find_spec("onnx") is None:
        return ()
    from onnx import TensorProto, helper  # noqa: PLC0415 - an extra

    def weight(name: str, *shape: int) -> object:
        count = 1
        for size in shape:
            count *= size
        return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(4 * count), raw=True)

    net = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("Gemm", ["f", "v", "b"], ["y"], transB=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [weight("w", 4, 3, 3, 3), weight("v", 10, 4), weight("b", 10)],
    )
    shaped = helper.make_graph(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"]),
            helper.make_node("Unsqueeze", ["n", "axes"], ["u"]),
            helper.make_node("Concat", ["u", "rest"], ["t"], axis=0),
            helper.make_node("Reshape", ["x", "t"], ["y"]),
            helper.make_node("Softmax", ["y"], ["z"]),
        ],
        "shaped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 4])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [
            helper.make_tensor("zero", TensorProto.INT64, [], [0]),
            helper.make_tensor("axes", TensorProto.INT64, [1], [0]),
            helper.make_tensor("rest", TensorProto.INT64, [1], [12]),
        ],
    )
    return tuple(helper.make_model(graph).SerializeToString() for graph in (net, shaped))


def _workload(kind: ModelKind, phase: Phase, path: Path) -> Workload:
    return Workload(ModelSource(kind, str(path)), phase=phase)


def _read_module(path: Path) -> object:
    return read_hlo(_workload(ModelKind.HLO, Phase.INFERENCE, path))


def _read_config(path: Path, *, phase: Phase) -> object:
    return expand(_workload(ModelKind.HF_CONFIG, phase, path))


READERS = (
    Reader(
        "HLO", "graphs", "step.hlo", Form.TEXT,
        texts(modules.COMPILED, modules.ATTENTION, modules.TPU, HLO_FEATURES, HLO_FEATURES), _read_module, 6,
    ),
    Reader("StableHLO", "graphs", "step.mlir", Form.TEXT, texts(*STABLEHLO), _read_module, 6),
    Reader(
        "config.json", "graphs", "config.json", Form.JSON, texts(*map(json.dumps, CONFIGS)),
        partial(_read_config, phase=Phase.TRAINING), 6,
    ),
    Reader(
        "config.json for inference", "graphs", "config.json", Form.JSON, texts(*map(json.dumps, CONFIGS)),
        partial(_read_config, phase=Phase.INFERENCE), 2,
    ),
    Reader(
        "ONNX", "graphs", "net.onnx", Form.BINARY, onnx_corpus,
        lambda path: read_onnx(_workload(ModelKind.ONNX, Phase.INFERENCE, path)), 3,
    ),
)  # fmt: skip
