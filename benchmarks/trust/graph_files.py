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
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 256,
    "num_key_value_heads": 2,
    "attention_dropout": 0.1,
    "torch_dtype": "bfloat16",
    "rope_parameters": {"partial_rotary_factor": 0.5},
    "architectures": ["LlamaForCausalLM"],
}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 500,
    "max_position_embeddings": 128,
}
CONFIGS = (
    LLAMA,
    {
        **SIZES,
        "model_type": "qwen2_moe",
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 64,
        "mlp_only_layers": [0],
        "decoder_sparse_step": 1,
    },
    {
        **SIZES,
        "model_type": "deepseek_v3",
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "qk_rope_head_dim": 8,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
    },
    {
        **SIZES,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 32,
        "sliding_window_pattern": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "use_sliding_window": True,
    },
    {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 128,
        "vocab_size": 500,
        "n_inner": None,
    },
    {
        **SIZES,
        "model_type": "bert",
        "type_vocab_size": 2,
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "a", "1": "b"},
    },
    {
        **SIZES,
        "model_type": "deberta-v2",
        "pos_att_type": ["p2c", "c2p"],
        "max_relative_positions": -1,
        "position_buckets": 16,
        "relative_attention": True,
        "norm_rel_ebd": "layer_norm",
    },
    {**SIZES, "model_type": "modernbert", "global_attn_every_n_layers": 2, "local_attention": 16},
    {**SIZES, "model_type": "vit", "image_size": 32, "patch_size": 8, "num_channels": 3},
    {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 500,
        "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 8,
    },
    {
        "model_type": "whisper",
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "vocab_size": 500,
        "num_mel_bins": 8,
        "max_source_positions": 16,
    },
    {
        "model_type": "falcon",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 500,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
    },
    {
        **SIZES,
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_layers": [0, 1],
        "text_config": {"model_type": "llama", **SIZES},
    },
)
GROUPED_WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
CHECKPOINTS = tuple(
    {**LLAMA, "quantization_config": section}
    for section in (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["lm_head"], "lm_head": False},
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        {"quant_method": "fp8", "weight_block_size": [16, 16], "ignore": ["re:.*gate"]},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": GROUPED_WEIGHTS, "targets": ["Linear"]}},
        },
        {"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 64}},
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
    )
)  # fmt: skip
"""Quantized weights, which only inference reads."""
STEPPED = modules.LOOP.replace("START", "0").replace("LIMIT", "%c_1").replace("STEP", "1")
CONVOLVED = modules.CONV.replace("OUT", "8x16x16x64").replace("D", "1")
STABLEHLO = (modules.MLP, modules.GENERIC, STEPPED, CONVOLVED, modules.ADAM)


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
        "HLO",
        "graphs",
        "step.hlo",
        Form.TEXT,
        texts(modules.COMPILED, modules.ATTENTION, modules.TPU, modules.FEATURES, modules.FEATURES),
        _read_module,
        6,
    ),
    Reader("StableHLO", "graphs", "step.mlir", Form.TEXT, texts(*STABLEHLO), _read_module, 6),
    Reader(
        "config.json",
        "graphs",
        "config.json",
        Form.JSON,
        texts(*map(json.dumps, CONFIGS)),
        partial(_read_config, phase=Phase.TRAINING),
        6,
    ),
    Reader(
        "config.json for inference",
        "graphs",
        "config.json",
        Form.JSON,
        texts(*map(json.dumps, (*CONFIGS, *CHECKPOINTS))),
        partial(_read_config, phase=Phase.INFERENCE),
        4,
    ),
    Reader(
        "ONNX",
        "graphs",
        "net.onnx",
        Form.BINARY,
        onnx_corpus,
        lambda path: read_onnx(_workload(ModelKind.ONNX, Phase.INFERENCE, path)),
        3,
    ),
)
