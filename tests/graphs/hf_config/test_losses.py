"""The fused loss: its memory, its products and the gradients it sends."""

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.graph import OpKind, Stage
from leadline.core.workload import Adapters, LossKernel
from tests.graphs.hf_config.conftest import SMALL, flops, peak

WIDE = {**SMALL, "vocab_size": 50000}
TOKENS = 4 * 512


def both(expanded, config, **settings):
    plain, fused = (expanded(config, batch=4, sequence=512, loss=loss, **settings).step for loss in LossKernel)
    return plain, fused


@pytest.mark.parametrize("tied", [False, True])
def test_a_fused_loss_needs_no_scores_of_all_tokens(expanded, tied):
    plain, fused = both(expanded, {**WIDE, "tie_word_embeddings": tied}, checkpointing=True)
    scores = 2 * TOKENS * 50000
    assert peak(plain) - peak(fused) > 4 * scores  # in 16 bits, and in float32 with their logarithms and gradients
    assert max(event.size_bytes for event in plain.events) >= scores
    gradients = 2 * 256 * 50000
    assert max(event.size_bytes for event in fused.events[fused.parameters > 0 :]) <= gradients < scores


def test_the_products_are_the_same_and_belong_to_the_same_pass(expanded):
    plain, fused = both(expanded, WIDE)
    for stage in (Stage.FORWARD, Stage.BACKWARD):
        assert flops(fused, OpKind.GEMM, stage=stage) == flops(plain, OpKind.GEMM, stage=stage)
    assert fused.parameters == plain.parameters


def test_frozen_output_layers_get_no_gradient(expanded):
    adapted = both(expanded, WIDE, adapters=Adapters(8))
    products = [flops(step, OpKind.GEMM, stage=Stage.BACKWARD) for step in adapted]
    assert products[0] == products[1]


def test_models_that_predict_no_next_token_have_no_fused_loss(expanded):
    bert = {"model_type": "bert", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
            "num_hidden_layers": 2, "vocab_size": 100}  # fmt: skip
    with pytest.raises(InvalidInput, match="--loss fused is for models that predict the next token, not this bert"):
        expanded(bert, loss=LossKernel.FUSED)
