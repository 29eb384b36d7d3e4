"""Parameter counts of expanded configurations are those of the published implementations, exactly."""

import json

import pytest

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import ModelKind, ModelSource, Phase, Workload
from leadline.graphs.hf_config import expand
from leadline.graphs.hf_config.families import read_shape

CONFIGS = [
    ("llama", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 688,
     "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000}),
    ("llama", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 688,
     "num_attention_heads": 8, "vocab_size": 1000, "tie_word_embeddings": True, "attention_bias": True,
     "mlp_bias": True}),
    ("mistral", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 688,
     "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000}),
    ("qwen2", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 688,
     "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000}),
    ("qwen3", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 688,
     "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "head_dim": 64}),
    ("gemma", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 688,
     "num_attention_heads": 8, "num_key_value_heads": 1, "vocab_size": 1000, "head_dim": 64}),
    ("mixtral", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
     "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "num_local_experts": 4}),
    ("qwen3_moe", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "moe_intermediate_size": 96,
     "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "num_experts": 8, "head_dim": 32}),
    ("gemma2", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
     "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "head_dim": 64}),
    ("gemma3_text", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
     "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "head_dim": 64}),
    ("phi3", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
     "num_attention_heads": 8, "vocab_size": 1000, "pad_token_id": 0, "eos_token_id": 1}),
    ("phi", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
     "num_attention_heads": 8, "vocab_size": 1000, "eos_token_id": 1}),
    ("falcon", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 8,
     "vocab_size": 1000}),
    ("falcon", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 8,
     "vocab_size": 1000, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    ("xlm-roberta", "AutoModelForMaskedLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
     "num_attention_heads": 8, "vocab_size": 1000}),
    ("gpt2", "AutoModelForCausalLM", {"n_layer": 2, "n_embd": 256, "n_head": 8, "vocab_size": 1000}),
    ("gpt_neox", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 1024,
     "num_attention_heads": 8, "vocab_size": 1000}),
    ("opt", "AutoModelForCausalLM", {"num_hidden_layers": 2, "hidden_size": 256, "ffn_dim": 1024,
     "num_attention_heads": 8, "vocab_size": 1000, "word_embed_proj_dim": 256}),
    ("bloom", "AutoModelForCausalLM", {"n_layer": 2, "hidden_size": 256, "n_head": 8, "vocab_size": 1000}),
    ("bert", "AutoModelForMaskedLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 1024,
     "num_attention_heads": 8, "vocab_size": 1000}),
    ("roberta", "AutoModelForMaskedLM", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 1024,
     "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 514, "type_vocab_size": 1}),
    ("distilbert", "AutoModelForMaskedLM", {"n_layers": 2, "dim": 256, "hidden_dim": 1024, "n_heads": 8,
     "vocab_size": 1000}),
    ("vit", "AutoModelForImageClassification", {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 1024,
     "num_attention_heads": 8, "image_size": 64, "patch_size": 16}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "auto", "sizes"), CONFIGS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_parameters_are_counted_as_the_implementation_has_them(tmp_path, family, auto, sizes):
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's implementations")
    torch = pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model(family, **sizes)
    with torch.device("meta"):
        model = getattr(transformers, auto).from_config(config)
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert expected == read_shape(config.to_dict(), "config.json").parameters()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    workload = Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), sequence=16, phase=Phase.INFERENCE)
    assert expected == expand(workload).step.parameters


def test_llama_2_7b_has_its_published_parameters():
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
              "num_hidden_layers": 32, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
    assert 6_738_415_616 == read_shape(config, "config.json").parameters()


def test_an_unknown_family_is_answered_with_the_close_ones():
    with pytest.raises(UnknownName, match="llama"):
        read_shape({"model_type": "lama"}, "config.json")


@pytest.mark.parametrize("value", [0, -1, "many", 1.5, True])
def test_a_size_that_is_no_size_is_named(value):
    with pytest.raises(InvalidInput, match="hidden_size"):
        read_shape({"model_type": "llama", "hidden_size": value, "num_attention_heads": 8}, "config.json")


def test_a_configuration_without_a_type_is_refused():
    with pytest.raises(InvalidInput, match="model_type"):
        read_shape({"hidden_size": 8}, "config.json")
