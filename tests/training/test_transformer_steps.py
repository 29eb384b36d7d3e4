"""Training steps of transformers: intervals inside and outside the training data."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.normalized_errors import normalize_errors
from benchmarks.shipped.transformer_fitting import fit_transformer_steps, model_flops
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.workload import (
    ModelKind,
    ModelSource,
    Optimizer,
    Parallelism,
    Phase,
    Precision,
    Sharding,
    Workload,
)
from leadline.estimators.parallelism.fabric import job_fabric
from leadline.estimators.step_time.transformer import TransformerStep, gpu_generation
from leadline.graphs.hf_config.expand import expand
from leadline.training.transformer_steps import (
    ALL,
    BEYOND,
    StepModel,
    predict_decoder_step,
    shipped_step_model,
)

pytest.importorskip("scipy")

A100 = TomlCatalog().device("A100 SXM4 80GB")
LONG = 16_384


def step(width, layers, gpus, sequence, microbatch):
    weights = 12.0 * layers * width**2
    return TransformerStep(
        A100, gpus, layers, width, 50_000, weights, weights + 50_000 * width, sequence, microbatch,
        node_bytes_per_s=200e9, nodes=max(1, gpus // 8),
    )  # fmt: skip


STEPS = [
    step(width, layers, gpus, sequence, batch)
    for width, layers in ((1024, 24), (2048, 24), (4096, 32))
    for gpus in (8, 16, 32)
    for sequence, batch in ((512, 16), (1024, 8), (2048, 2))
]
SECONDS = np.array([model_flops(size) / (0.6 * A100.peak_flops_per_s["bfloat16"]) + 0.01 for size in STEPS])
WITHIN, OUTSIDE = STEPS[13], replace(STEPS[13], sequence=LONG, microbatch=1)


@pytest.fixture(scope="module")
def law():
    return fit_transformer_steps(STEPS, SECONDS.tolist())


def scores(error):
    return normalize_errors([error] * 30, [1.0] * 30)


def half(model, step):
    point, _, high = model.predict([step], 0.9)
    return float(np.log(high[0] / point[0])) / float(model.law.predict([step]).spread[0])


def test_errors_of_extrapolations_apply_to_extrapolated_steps_only(law):
    model = StepModel(law, {ALL: scores(2.0), ALL + BEYOND: scores(0.5)})
    assert half(model, WITHIN) == pytest.approx(2.0)
    assert half(model, OUTSIDE) == pytest.approx(0.5)


def test_scores_of_the_same_generation_come_first(law):
    own = gpu_generation(A100)
    model = StepModel(law, {ALL: scores(2.0), ALL + BEYOND: scores(0.5), own: scores(3.0), own + BEYOND: scores(4.0)})
    assert half(model, WITHIN) == pytest.approx(3.0)
    assert half(model, OUTSIDE) == pytest.approx(4.0)


def test_without_extrapolations_all_scores_apply_outside_the_range(law):
    assert half(StepModel(law, {ALL: scores(2.0)}), OUTSIDE) == pytest.approx(2.0)


CATALOG = TomlCatalog()
A100_80GB = "A100 SXM4 80GB"
NETWORK = 200e9
LLAMA_7B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
            "num_hidden_layers": 32, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
NEOX_7B = {"model_type": "gpt_neox", "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
           "num_hidden_layers": 32, "vocab_size": 50432, "max_position_embeddings": 4096}  # fmt: skip
MIXTURE = {"model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 16,
           "num_key_value_heads": 4, "num_hidden_layers": 4, "vocab_size": 32000, "num_local_experts": 8,
           "num_experts_per_tok": 2, "max_position_embeddings": 8192}  # fmt: skip
BERT = {"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
        "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 4096,
        "type_vocab_size": 2}  # fmt: skip
MPT = {"model_type": "mpt", "d_model": 768, "n_heads": 12, "n_layers": 12, "max_seq_len": 4096, "vocab_size": 50368}
WINDOWED = {**LLAMA_7B, "model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 1024}
SHARDED = Parallelism(sharding=Sharding.FULL)


@pytest.fixture
def predict(tmp_path):
    def ask(config=LLAMA_7B, device=A100_80GB, gpus=64, plan=SHARDED, network=NETWORK, **changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        settings = {"batch": 2, "sequence": 4096, "precision": Precision.BF16, **changes}
        workload = Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), **settings)
        job = expand(replace(workload, compiled=False))
        whole = replace(workload, gpus=gpus, parallelism=plan)
        card = CATALOG.device(device)
        fabric = job_fabric(whole, card, None, network)
        return predict_decoder_step(shipped_step_model(), job, whole, card, fabric=fabric)

    return ask


def llama(width, inner, heads, layers, kv_heads):
    return {**LLAMA_7B, "hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads,
            "num_hidden_layers": layers, "num_key_value_heads": kv_heads}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "batch", "again", "published", "within"),
    [
        (llama(4096, 11008, 32, 32, 32), 2, False, 3760, 0.06),
        (llama(5120, 13824, 40, 40, 40), 1, False, 1700, 0.12),
        (llama(8192, 22016, 64, 48, 8), 8, True, 772, 0.06),
        (llama(8192, 28672, 64, 80, 8), 6, True, 380, 0.06),
    ],
    ids=["7B", "13B", "34B", "70B"],
)
def test_llama_steps_match_published_times(predict, config, batch, again, published, within):
    """Tokens a second and GPU on 128 A100s, 400 Gb/s a node, 4,096 tokens (fms-fsdp, its README).

    The two smaller ones were sharded within nodes alone, which hides more. None of these was learned from.
    """
    prediction = predict(config, gpus=128, batch=batch, checkpointing=again, network=50e9).step_s
    assert batch * 4096 / prediction.point == pytest.approx(published, rel=within)
    assert batch * 4096 / prediction.high < published < batch * 4096 / prediction.low


def test_utilization_matches_the_published_table(predict):
    """The sizes of MPT-7B on 8 A100s, which llm-foundry's table has at about half of the peak."""
    prediction = predict(
        NEOX_7B, A100_80GB, 8, batch=8, sequence=2048, checkpointing=True, precision=Precision.AMP_BF16
    )
    utilisation = 6 * 6.6e9 * 8 * 2048 * (1 + 2048 / (6 * 4096)) / prediction.step_s.point / 312e12
    assert 0.40 < utilisation < 0.60
    assert prediction.parts_s["products"] > 0.6 * prediction.step_s.point


def test_more_microbatches_take_longer_in_proportion(predict):
    single, four = (predict(gpus=8, accumulation=count, checkpointing=True).step_s.point for count in (1, 4))
    assert 3.5 < four / single < 4.0


def test_a_trace_of_recomputation_has_as_many_layers_as_one_without(predict):
    plain, again = (predict(checkpointing=checkpointing).step_s.point for checkpointing in (False, True))
    assert 1.15 < again / plain < 1.40


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"gpus": 10**6}, "extrapolating: GPUs (1e+06), 1.95e+03 times above the largest in the training data (512)"),
        ({"device": "RTX 4090"}, "extrapolating: no step on Ada 8.9 is in the training data"),
        ({"config": {**LLAMA_7B, "num_key_value_heads": 8}}, "the block sizes differ from those"),
    ],
)
def test_extrapolation_widens_the_interval_with_a_sentence(predict, changes, part):
    near, far = predict(), predict(**changes)
    assert far.step_s.high / far.step_s.low > 1.05 * near.step_s.high / near.step_s.low
    assert any(part in sentence for sentence in far.sentences)
    assert not any(part in sentence for sentence in near.sentences)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": MIXTURE, "sequence": 1024}, "not mixtures of experts"),
        ({"config": BERT}, "computes 100% of all pairs: an encoder"),
        ({"config": WINDOWED}, "a sliding window"),
        ({"config": MPT}, "writes its attention out op by op"),
        ({"plan": Parallelism(sharding=Sharding.NONE)}, "not sharding none"),
        ({"plan": Parallelism(tensor=2)}, "no tensor or pipeline parallelism"),
        ({"device": "MI300X"}, "MI300X is none"),
        ({"device": "V100 SXM2 32GB"}, "has no bfloat16 peak"),
        ({"precision": Precision.FP32}, "not in fp32"),
        ({"compiled": True}, "a compiled one fuses"),
        ({"phase": Phase.INFERENCE}, "nothing of inference"),
    ],
)
def test_unsupported_models_are_refused_with_the_reason(predict, changes, reason):
    with pytest.raises(InvalidInput, match=reason):
        predict(**changes)


def test_an_assumed_network_is_reported(predict):
    named, unnamed = predict(), predict(network=None)
    assert named.step_s.point == unnamed.step_s.point  # the usual network of A100s
    assert named.step_s.high < unnamed.step_s.high
    assert any("assumed network: 200 Gb/s a GPU" in sentence for sentence in unnamed.sentences)
    assert not any("assumed network" in sentence for sentence in named.sentences)


def test_unset_options_follow_the_training_loop(predict):
    """Where nobody says, a configuration is trained in bf16."""
    assert predict().step_s == predict(precision=None).step_s


def test_the_optimizer_of_a_trace_does_not_change_the_step(predict):
    adam, lion = (predict(optimizer=optimizer).step_s.point for optimizer in (Optimizer.ADAMW, Optimizer.LION))
    assert adam == lion
