"""Weights and matrix products of expanded configurations are those of the published implementations, exactly."""

import json

import pytest

from leadline.core.graph import OpKind
from leadline.core.workload import ModelKind, ModelSource, Phase, Precision, Workload
from leadline.graphs.hf_config.expand import expand
from leadline.graphs.hf_config.families import FAMILIES

CAUSAL, MASKED = "AutoModelForCausalLM", "AutoModelForMaskedLM"
CLASSES, PAIR = "AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM"
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
         "vocab_size": 300}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 32}
EXPERTS = {**WIDE, "moe_intermediate_size": 48, "num_experts": 8}
LATENT = {**SMALL, "moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 32,
          "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "first_k_dense_replace": 1, "topk_group": 1,
          "n_group": 1}  # fmt: skip
GPT = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 300}
DISTIL = {"n_layers": 2, "dim": 64, "hidden_dim": 160, "n_heads": 4, "vocab_size": 300}
OPT = {"num_hidden_layers": 2, "hidden_size": 64, "ffn_dim": 160, "num_attention_heads": 4, "vocab_size": 300}
FALCON = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 300}
SHIFTED = {**SMALL, "max_position_embeddings": 66}
DISTANCES = {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
MODERN = {**SMALL, "num_hidden_layers": 4, "pad_token_id": 0}
IMAGES = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
          "image_size": 64, "patch_size": 16}  # fmt: skip
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3,
      "vocab_size": 300, "decoder_start_token_id": 0}  # fmt: skip
SIDES = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 160, "decoder_ffn_dim": 96,
         "encoder_attention_heads": 4, "decoder_attention_heads": 2, "vocab_size": 300, "pad_token_id": 1,
         "decoder_start_token_id": 2, "bos_token_id": 0, "eos_token_id": 2}  # fmt: skip

ROWS = [
    ("llama", CAUSAL, GROUPED),
    ("llama", CAUSAL, {**SMALL, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", CLASSES, {**GROUPED, "pad_token_id": 0}),
    ("llama", "AutoModel", GROUPED),
    ("mistral", CAUSAL, GROUPED),
    ("granite", CAUSAL, GROUPED),
    ("qwen2", CAUSAL, GROUPED),
    ("qwen3", CAUSAL, WIDE),
    ("gemma", CAUSAL, {**WIDE, "num_key_value_heads": 1}),
    ("gemma2", CAUSAL, WIDE),
    ("gemma3_text", CAUSAL, WIDE),
    ("phi3", CAUSAL, {**SMALL, "pad_token_id": 0, "eos_token_id": 1}),
    ("phi", CAUSAL, {**SMALL, "eos_token_id": 1}),
    ("olmo", CAUSAL, GROUPED),
    ("olmo2", CAUSAL, GROUPED),
    ("starcoder2", CAUSAL, GROUPED),
    ("starcoder2", CAUSAL, {**GROUPED, "use_bias": False}),
    ("stablelm", CAUSAL, GROUPED),
    ("stablelm", CAUSAL, {**GROUPED, "use_qkv_bias": True, "use_parallel_residual": True, "qk_layernorm": True}),
    ("cohere", CAUSAL, GROUPED),
    ("cohere", CAUSAL, {**GROUPED, "use_qk_norm": True}),
    ("mixtral", CAUSAL, {**GROUPED, "num_local_experts": 4}),
    ("qwen2_moe", CAUSAL, {**GROUPED, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
                           "num_experts": 8}),
    ("qwen3_moe", CAUSAL, EXPERTS),
    ("qwen3_moe", CAUSAL, {**EXPERTS, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    ("olmoe", CAUSAL, {**GROUPED, "num_experts": 8}),
    ("gpt_oss", CAUSAL, {**WIDE, "intermediate_size": 48, "num_local_experts": 8}),
    ("deepseek_v2", CAUSAL, {**LATENT, "q_lora_rank": None, "n_shared_experts": 2}),
    ("deepseek_v3", CAUSAL, {**LATENT, "q_lora_rank": 40, "n_shared_experts": 1}),
    ("falcon", CAUSAL, FALCON),
    ("falcon", CAUSAL, {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    ("gpt2", CAUSAL, GPT),
    ("gpt_bigcode", CAUSAL, GPT),
    ("gptj", CAUSAL, {**GPT, "rotary_dim": 8}),
    ("codegen", CAUSAL, {**GPT, "rotary_dim": 8}),
    ("gpt_neo", CAUSAL, {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 300,
                         "attention_types": [[["global", "local"], 1]]}),
    ("gpt_neox", CAUSAL, SMALL),
    ("gpt_neox", CAUSAL, {**SMALL, "use_parallel_residual": False, "attention_bias": False}),
    ("opt", CAUSAL, {**OPT, "word_embed_proj_dim": 64}),
    ("opt", CAUSAL, {**OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    ("bloom", CAUSAL, {"n_layer": 2, "hidden_size": 64, "n_head": 4, "vocab_size": 300}),
    ("mpt", CAUSAL, {"n_layers": 2, "d_model": 64, "n_heads": 4, "vocab_size": 300}),
    ("bert", MASKED, SMALL),
    ("bert", CLASSES, SMALL),
    ("bert", "AutoModelForTokenClassification", SMALL),
    ("bert", "AutoModel", SMALL),
    ("roberta", MASKED, {**SHIFTED, "type_vocab_size": 1}),
    ("roberta", CLASSES, {**SHIFTED, "num_labels": 5}),
    ("xlm-roberta", MASKED, SHIFTED),
    ("camembert", MASKED, SHIFTED),
    ("distilbert", MASKED, DISTIL),
    ("distilbert", CLASSES, DISTIL),
    ("distilbert", "AutoModel", DISTIL),
    ("electra", MASKED, {**SMALL, "embedding_size": 32}),
    ("electra", "AutoModelForPreTraining", {**SMALL, "embedding_size": 64}),
    ("electra", CLASSES, SMALL),
    ("albert", MASKED, {**SMALL, "embedding_size": 32, "num_hidden_layers": 4}),
    ("albert", "AutoModel", {**SMALL, "embedding_size": 64}),
    ("mpnet", MASKED, SHIFTED),
    ("deberta", MASKED, DISTANCES),
    ("deberta-v2", MASKED, {**DISTANCES, "share_att_key": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm"}),
    ("deberta-v2", MASKED, SMALL),
    ("deberta-v2", CLASSES, {**SMALL, "pooler_hidden_size": 64}),
    ("modernbert", MASKED, MODERN),
    ("modernbert", CLASSES, MODERN),
    ("vit", "ViTForImageClassification", IMAGES),
    ("deit", "DeiTForImageClassification", {**IMAGES, "num_labels": 7}),
    ("deit", "DeiTForImageClassificationWithTeacher", IMAGES),
    ("t5", PAIR, T5),
    ("t5", PAIR, {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5", "T5EncoderModel", T5),
    ("mt5", PAIR, T5),
    ("bart", PAIR, SIDES),
    ("mbart", PAIR, SIDES),
    ("whisper", "AutoModelForSpeechSeq2Seq", {**SIDES, "max_source_positions": 40, "num_mel_bins": 20}),
]  # fmt: skip
BATCH, SEQUENCE = 2, 16


GROUPS = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32}
WHISPER = {"d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12,
           "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}  # fmt: skip
PUBLISHED = [
    ("llama", 8_030_261_248, {**GROUPS, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256}),
    ("mixtral", 46_702_792_704, {**GROUPS, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000}),
    ("gemma2", 9_241_705_984, {"hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
                               "num_key_value_heads": 8, "head_dim": 256, "num_hidden_layers": 42,
                               "vocab_size": 256000}),
    ("qwen3_moe", 30_532_122_624, {"hidden_size": 2048, "moe_intermediate_size": 768, "num_attention_heads": 32,
                                   "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 48,
                                   "vocab_size": 151936}),
    ("gpt_oss", 20_914_757_184, {"hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
                                 "num_key_value_heads": 8, "num_hidden_layers": 24, "num_local_experts": 32,
                                 "vocab_size": 201088}),
    ("deepseek_v3", 671_026_404_352, {"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
                                      "n_routed_experts": 256, "num_attention_heads": 128, "num_experts_per_tok": 8,
                                      "num_hidden_layers": 61, "vocab_size": 129280}),
    ("bert", 109_514_298, {}),
    ("vit", 86_567_656, {"num_labels": 1000}),
    ("t5", 60_506_624, {}),
    ("whisper", 241_734_912, WHISPER),
]  # fmt: skip


GEMMA3_VISION = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16,
                 "model_type": "siglip_vision_model", "num_hidden_layers": 27, "patch_size": 14,
                 "vision_use_head": False}  # fmt: skip
CLIP_LARGE = {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
              "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14}  # fmt: skip


def gemma3(**text):
    text = {"model_type": "gemma3_text", "sliding_window": 1024, **text}
    return {"model_type": "gemma3", "mm_tokens_per_image": 256, "text_config": text, "vision_config": GEMMA3_VISION}


LLAMA3 = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256}

FILES = [
    # The files of google/gemma-3-4b-it and -12b-it on Hugging Face, and the totals of their tensors there.
    (4_300_079_472, gemma3(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34)),
    (12_187_325_040, gemma3(hidden_size=3840, intermediate_size=15360, num_hidden_layers=48, num_attention_heads=16,
                            num_key_value_heads=8)),
    # llava-hf/llava-1.5-7b-hf, with the number that its users count.
    (7_063_427_072, {"model_type": "llava", "vision_config": CLIP_LARGE,
                     "text_config": {"max_position_embeddings": 4096, "model_type": "llama", "vocab_size": 32064}}),
    # openai/gpt-oss-120b: 116.83 B in its model card (arXiv 2508.10925), 116,829,156,672 in Ollama's copy.
    (116_829_156_672, {"model_type": "gpt_oss", "num_hidden_layers": 36, "num_local_experts": 128}),
    # Qwen/Qwen3-235B-A22B: the total of its tensors on Hugging Face. Sizes: arXiv 2505.09388, table 2.
    (235_093_634_560, {"model_type": "qwen3_moe", "hidden_size": 4096, "moe_intermediate_size": 1536, "head_dim": 128,
                       "num_attention_heads": 64, "num_key_value_heads": 4, "num_hidden_layers": 94,
                       "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936}),
    # Totals of the tensors of these repositories on Hugging Face: google/gemma-3-1b-it, meta-llama/Llama-3.1-70B and
    # -405B, mistralai/Mixtral-8x22B-v0.1, deepseek-ai/DeepSeek-V2, nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.
    (999_885_952, {"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "head_dim": 256,
                   "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 262144}),
    (70_553_706_496, {**LLAMA3, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
                      "num_hidden_layers": 80}),
    (405_853_388_800, {**LLAMA3, "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128,
                       "num_hidden_layers": 126}),
    (140_630_071_296, {"model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384,
                       "num_attention_heads": 48, "num_hidden_layers": 56, "vocab_size": 32768}),
    (235_741_434_880, {"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288,
                       "moe_intermediate_size": 1536, "n_routed_experts": 160, "num_attention_heads": 128,
                       "num_hidden_layers": 60, "first_k_dense_replace": 1, "vocab_size": 102400}),
    (31_577_937_344, {"model_type": "nemotron_h", "hidden_size": 2688, "moe_intermediate_size": 1856,
                      "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
                      "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128, "num_experts_per_tok": 6,
                      "mamba_num_heads": 64, "num_key_value_heads": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "config"), FILES)
def test_files_as_published_have_their_published_parameters(tmp_path, parameters, config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    workload = Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), sequence=1024, phase=Phase.INFERENCE)
    assert expand(workload).step.parameters == parameters


@pytest.mark.parametrize(("family", "parameters", "sizes"), PUBLISHED)
def test_published_models_have_their_published_parameters(tmp_path, family, parameters, sizes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, **sizes}))
    source = ModelSource(ModelKind.HF_CONFIG, str(path))
    assert parameters == expand(Workload(source, sequence=16, phase=Phase.INFERENCE)).step.parameters


RECENT = [family for family, (_, style) in FAMILIES.items() if style.recent and style.defaults.get("hidden")]


@pytest.mark.parametrize("family", RECENT)
def test_a_file_without_sizes_has_the_defaults_of_its_class(tmp_path, family):
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's implementations")
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family}))
    workload = Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), sequence=16, phase=Phase.INFERENCE)
    assert expand(workload).step.parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(("family", "auto", "sizes"), ROWS, ids=[f"{row[0]}-{place}" for place, row in enumerate(ROWS)])
def test_weights_and_products_are_those_of_the_implementation(tmp_path, family, auto, sizes):
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's implementations")
    torch = pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model(family, **sizes)
    config._experts_implementation = "eager"
    made_by = getattr(transformers, auto)
    model = (made_by.from_config(config) if auto.startswith("Auto") else made_by(config)).train()
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config.to_dict(), "architectures": [type(model).__name__]}))
    workload = Workload(
        ModelSource(ModelKind.HF_CONFIG, str(path)), batch=BATCH, sequence=SEQUENCE, precision=Precision.FP32
    )
    step = expand(workload).step
    assert sum(parameter.numel() for parameter in model.parameters()) == step.parameters
    linear = (op for op in step.ops if op.kind in (OpKind.GEMM, OpKind.CONV) and op.name != "aten.bmm")
    expected = products(torch, model, inputs(torch, config, auto))
    assert pytest.approx(expected, rel=1e-9) == sum(op.flops * op.count for op in linear)


def products(torch, model, inputs):
    """Count what one forward and backward pass multiplies, but for products of activations (attention)."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        answer = model(**inputs)
        (answer.loss if "labels" in inputs else answer[0].float().mean()).backward()
    counted = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    kinds = ("aten.mm", "aten.addmm", "aten.convolution", "aten.convolution_backward")
    return sum(counted.get(name, 0) for name in kinds)


def inputs(torch, config, auto):
    """Return the inputs of one training step, with labels where the class takes them for words."""
    tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    if hasattr(config, "image_size"):
        return {"pixel_values": torch.zeros(BATCH, 3, config.image_size, config.image_size)}
    if hasattr(config, "num_mel_bins"):
        spectrum = torch.zeros(BATCH, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": spectrum, "labels": tokens}
    if auto in (CLASSES, "AutoModel", "T5EncoderModel"):
        return {"input_ids": tokens}
    return {"input_ids": tokens, "labels": tokens}
