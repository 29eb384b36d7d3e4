"""A configuration is read by its family's reader, or refused with a sentence that names what is wrong."""

import pytest

from leadline.core.errors import InvalidInput, UnknownName
from leadline.graphs.hf_config.families import FAMILIES, read_model_shape

LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
         "num_hidden_layers": 2, "vocab_size": 300}  # fmt: skip
BERT = {"model_type": "bert"}


def read(config, **more):
    return read_model_shape({**config, **more}, "config.json")[0]


def test_a_mistyped_family_is_an_error_with_similar_names():
    with pytest.raises(UnknownName, match="'lama': did you mean"):
        read({"model_type": "lama"})


def test_an_unknown_family_is_an_error_with_all_known_names_and_a_fix():
    with pytest.raises(UnknownName) as caught:
        read({"model_type": "zzz"})
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert all(word in sentence for word in ("'zzz'", "file.py:function", *FAMILIES))


def test_sizes_missing_in_a_file_are_listed_once():
    _, left_out = read_model_shape({**LLAMA, "model_type": "gemma2"}, "config.json")
    assert set(left_out) == {
        "max_position_embeddings = 8192", "head_dim = 256", "num_key_value_heads = 4", "sliding_window = 4096"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "num_attention_heads": 3}, "hidden size of 64 cannot be split over 3 heads"),
        ({**LLAMA, "num_key_value_heads": 3}, "4 heads cannot share 3"),
        ({**LLAMA, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "3 of 2 experts"),
        ({**LLAMA, "rope_parameters": {"partial_rotary_factor": 2}}, "partial_rotary_factor is 2"),
        ({**LLAMA, "hidden_act": 7}, "hidden_act is 7"),
        ({**LLAMA, "mlp_bias": "perhaps"}, "mlp_bias is 'perhaps'"),
        ({**BERT, "hidden_dropout_prob": 1.5}, "hidden_dropout_prob is 1.5"),
        ({**BERT, "model_type": "albert", "inner_group_num": 2}, "groups of layers"),
        ({**BERT, "model_type": "deberta-v2", "conv_kernel_size": 3}, "conv_kernel_size"),
        ({"model_type": "vit", "image_size": 8}, "patches of 16"),
        ({"model_type": "mpt", "d_model": 64, "n_heads": 4, "no_bias": False}, "MPT model with biases"),
    ],
)
def test_an_unsupported_configuration_is_refused_with_the_value(config, message):
    with pytest.raises(InvalidInput, match=message):
        read(config)


@pytest.mark.parametrize(
    ("architecture", "outputs"),
    [("BertForMaskedLM", 30522), ("BertForSequenceClassification", 3), ("BertModel", 0), ("BertForTheFuture", 30522)],
)
def test_the_head_is_that_of_the_class_whose_weights_the_file_describes(architecture, outputs):
    shape = read(BERT, architectures=[architecture], id2label={"0": "a", "1": "b", "2": "c"})
    assert outputs == shape.head.outputs


def test_the_layers_that_the_file_makes_dense_have_no_experts():
    config = {**LLAMA, "model_type": "qwen3_moe", "num_hidden_layers": 4, "moe_intermediate_size": 32,
              "mlp_only_layers": [0], "decoder_sparse_step": 2}  # fmt: skip
    assert [layer.feed_forward.experts for layer in read(config).layers] == [0, 128, 0, 128]


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"]}, [32, None]),
        ({"sliding_window_pattern": 2}, [32, None]),
        ({"use_sliding_window": False}, [None, None]),
        ({}, [32, 32]),
    ],
)
def test_each_layer_has_the_window_that_the_file_gives_it(more, windows):
    shape = read({**LLAMA, "model_type": "mistral"}, sliding_window=32, **more)
    assert windows == [layer.attention.window for layer in shape.layers]


@pytest.mark.parametrize("value", [0, -1, "many", 1.5, True])
def test_an_invalid_size_is_named(value):
    with pytest.raises(InvalidInput, match="hidden_size"):
        read(LLAMA, hidden_size=value)


def test_a_configuration_without_a_type_is_refused():
    with pytest.raises(InvalidInput, match="model_type"):
        read({"hidden_size": 8})
