"""The closed form of a training step: what a layout changes, and in which direction."""

import json
from dataclasses import replace as copy

import numpy as np
import pytest
from msgspec.structs import replace

from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.workload import (
    ContextMethod,
    Fusion,
    ModelKind,
    ModelSource,
    Overlap,
    Parallelism,
    Precision,
    Recompute,
    Sharding,
    Workload,
)
from leadline.estimators.parallelism.decoder_work import Cut, extend_batch, read_work
from leadline.estimators.parallelism.step_parts import NAMES, STARTS, step_parts, step_seconds
from leadline.estimators.parallelism.training_step import AttentionKernel, StepTable, TrainingStep
from leadline.graphs.hf_config.expand import expand
from leadline.training.decoder_steps import shipped_step_model

CURVES = shipped_step_model().curves
H100 = TomlCatalog().device("H100 SXM5 80GB")
LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}


def work_of(folder, config=LLAMA, batch=1, accumulation=1):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    workload = Workload(
        ModelSource(ModelKind.HF_CONFIG, str(path)), batch=batch, sequence=4096, precision=Precision.BF16,
        accumulation=accumulation,
    )  # fmt: skip
    return read_work(expand(workload).step, accumulation)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return work_of(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return work_of(tmp_path_factory.mktemp("mixtral"), MIXTRAL)


def made(work, gpus=64, plan=None, **changes):
    """Return a step on H100s with the usual fusion of its layout."""
    return replace(TrainingStep(work, H100, gpus).with_plan(plan or Parallelism()), **changes)


def seconds(step):
    return float(step_seconds(STARTS, StepTable([step], CURVES))[0])


def parts(step):
    return {name: float(values[0]) for name, values in step_parts(STARTS, StepTable([step], CURVES)).items()}


def test_the_work_of_llama_has_its_published_weights_and_flops(work):
    assert work.parameters == pytest.approx(8.03e9, rel=0.001)
    assert work.layer_weights == pytest.approx(6.98e9, rel=0.001)
    assert [product.n for product in work.products if product.cut is Cut.HEAD] == [128256]
    # 2·L·width·sequence² multiply-adds of causal attention
    assert work.attention_flops == pytest.approx(2 * 32 * 4096 * 4096**2)
    assert work.reductions == 64


def test_the_work_of_a_microbatch_is_the_same_however_many_there_are(tmp_path, work):
    again = work_of(tmp_path, accumulation=4)
    assert again.layer_weights == work.layer_weights
    assert again.attention_flops == pytest.approx(work.attention_flops)
    assert again.kernels == pytest.approx(work.kernels, rel=0.1)  # gradients add up


def test_a_larger_batch_follows_from_one_and_two(tmp_path):
    one, two, eight = (work_of(tmp_path, batch=batch) for batch in (1, 2, 8))
    grown = extend_batch(one, two, 8)
    assert [product.m for product in grown.products] == [product.m for product in eight.products]
    for name in ("tokens", "attention_flops", "stream_bytes", "inner_bytes", "head_bytes", "kernels"):
        assert getattr(grown, name) == pytest.approx(getattr(eight, name), rel=1e-6), name


def test_experts_are_told_from_the_weights_of_all_tokens(experts):
    assert experts.parameters == pytest.approx(46.7e9, rel=0.001)
    assert experts.expert_weights == pytest.approx(3 * 4096 * 14336 * 8 * 32)
    assert experts.expert_layers == 32
    assert experts.routed_tokens == 32 * 2 * 4096


def test_a_graph_without_layers_is_refused(tmp_path):
    vit = {"model_type": "vit", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
           "num_hidden_layers": 1, "image_size": 32, "patch_size": 8}  # fmt: skip
    work_of(tmp_path, vit)
    from leadline.core.graph import OpGraph

    with pytest.raises(InvalidInput, match="no layers to divide"):
        read_work(OpGraph(()), 1)


def test_no_step_beats_the_peak(work):
    flops = 6 * (work.layer_weights + 128256 * 4096) * work.tokens + 3 * work.attention_flops
    for step in (made(work, 1), made(work, 8, Parallelism(tensor=8))):
        assert seconds(step) > flops / step.gpus / H100.peak_flops_per_s["bfloat16"]


def test_parts_add_up_to_the_step(work):
    plan = Parallelism(2, 4, Sharding.OPTIMIZER, context=2, virtual=2)
    step = made(work, 32, plan, microbatches=16)
    assert sum(parts(step).values()) == pytest.approx(seconds(step))
    assert all(value >= 0 for value in parts(step).values())


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({}, {"recompute": Recompute.SELECTIVE}),
        ({"recompute": Recompute.SELECTIVE}, {"recompute": Recompute.FULL}),
        ({"attention": AttentionKernel.FLASH3}, {"attention": AttentionKernel.FLASH2}),
        ({"dtype": "float8"}, {"dtype": "bfloat16"}),
        ({"dtype": "float8"}, {"dtype": "mxfloat8"}),
        ({"gpu_network_bytes_per_s": 50e9}, {"gpu_network_bytes_per_s": 5e9}),
        ({"plan": Parallelism(fusion=Fusion.COMPILER)}, {"plan": Parallelism(fusion=Fusion.NONE)}),
        ({"plan": Parallelism(4, overlap=Overlap.ALL)}, {"plan": Parallelism(4, overlap=Overlap.DATA)}),
        ({"plan": Parallelism(4)}, {"plan": Parallelism(4, sequence=False)}),
        ({"plan": Parallelism(1, 8, virtual=4)}, {"plan": Parallelism(1, 8)}),
        ({"plan": Parallelism(overlap=Overlap.DATA)}, {"plan": Parallelism(overlap=Overlap.NONE)}),
        ({"plan": Parallelism(sharding=Sharding.FULL, shard_group=8)}, {"plan": Parallelism(sharding=Sharding.FULL)}),
        ({"autocast": False}, {"autocast": True}),
    ],
    ids=lambda change: next(iter(change), "none"),
)  # fmt: skip
def test_what_costs_more_takes_longer(work, less, more):
    assert seconds(made(work, microbatches=4, **less)) < seconds(made(work, microbatches=4, **more))


def test_a_pipeline_idles_for_its_stages_less_one_by_its_microbatches(work):
    few, many = (parts(made(work, 8, Parallelism(1, 8), microbatches=count)) for count in (8, 64))
    assert few["bubble"] == pytest.approx(many["bubble"])
    busy = few["layers"] + few["pipeline"]
    assert few["bubble"] / busy == pytest.approx(7 / 8, rel=0.05)


def test_context_parallelism_divides_a_sequence(work):
    ring, ulysses = (
        parts(made(work, 8, Parallelism(context=8, context_method=method, fusion=Fusion.LIBRARY)))
        for method in ContextMethod
    )
    alone = parts(made(work, 1, Parallelism(fusion=Fusion.LIBRARY)))
    assert 1 / 9 < ring["layers"] / alone["layers"] < 1 / 4
    assert 0 < ring["context"] != ulysses["context"] > 0


def test_experts_travel_and_are_shared(experts):
    together = made(experts, 8, Parallelism(fusion=Fusion.LIBRARY))
    spread = made(experts, 8, Parallelism(expert=8))
    assert parts(together)["experts"] == 0
    assert parts(spread)["experts"] > 0
    assert parts(spread)["gradients"] < parts(together)["gradients"]
    slow = made(experts, 64, Parallelism(expert=64), gpu_network_bytes_per_s=5e9)
    assert parts(slow)["experts"] > parts(replace(slow, gpu_network_bytes_per_s=50e9))["experts"]


def test_experts_are_spread_over_tensor_parallel_gpus_too(experts):
    """Nobody cuts an expert, so the GPUs of one stage hold the same weights and products in both layouts."""
    wide, narrow = (parts(made(experts, 8, Parallelism(tensor, expert=8, fusion=Fusion.LIBRARY))) for tensor in (1, 8))
    assert narrow["optimizer"] < wide["optimizer"]
    assert narrow["layers"] < wide["layers"]
    assert narrow["experts"] == pytest.approx(wide["experts"] / 8, rel=0.25)


def test_many_small_experts_wait_for_their_kernels(experts):
    many = replace(experts, products=tuple(
        replace(each, experts=16 * each.experts, m=max(1, each.m // 16)) for each in experts.products
    ))  # fmt: skip
    small = replace(many, tokens=many.tokens // 64, products=tuple(
        replace(each, m=max(1, each.m // 64)) for each in many.products
    ))  # fmt: skip
    spread = [parts(made(small, 8, Parallelism(expert=each, fusion=Fusion.LIBRARY)))["layers"] for each in (1, 8)]
    assert spread[0] > 2 * spread[1]


def test_experts_without_a_library_are_the_kernels_of_their_graph(experts):
    products = tuple(replace(each, m=1) for each in experts.products)
    small = replace(
        experts, tokens=1, products=products, kernels=0.0, stream_bytes=0.0, inner_bytes=0.0, attention_flops=0.0
    )
    plain, library = (
        parts(made(small, 1, Parallelism(fusion=fusion)))["layers"] for fusion in (Fusion.NONE, Fusion.LIBRARY)
    )
    assert plain + 0.06 < library


def test_many_layouts_are_the_layouts_one_by_one(work, experts):
    steps = [
        made(work, 64, Parallelism(8, 2, virtual=2), microbatches=8),
        made(experts, 64, Parallelism(expert=8, sharding=Sharding.FULL)),
        TrainingStep(work, copy(H100, architecture="Ampere"), 8),
    ]
    assert step_seconds(STARTS, StepTable(steps, CURVES)) == pytest.approx([seconds(step) for step in steps])


def test_each_coefficient_makes_some_step_longer(work, experts):
    plans = [Parallelism(8, 2, virtual=2, overlap=Overlap.ALL), Parallelism(8, 2, overlap=Overlap.NONE),
             Parallelism(expert=8), Parallelism(sharding=Sharding.FULL, fusion=Fusion.NONE)]  # fmt: skip
    steps = [made(each, 64, plan, dtype=dtype, attention=attention, microbatches=4)
             for each in (replace(work, scores=1e9), experts) for plan in plans
             for dtype in ("bfloat16", "float8", "mxfloat8") for attention in AttentionKernel]  # fmt: skip
    steps += [copy(step, device=copy(H100, architecture="Ampere")) for step in steps[:1]]
    table = StepTable(steps, CURVES)
    before = step_seconds(STARTS, table)
    for place, name in enumerate(NAMES):
        longer = step_seconds(STARTS + 0.1 * (np.arange(len(NAMES)) == place), table)
        assert (longer >= before * (1 - 1e-12)).all(), name
        assert (longer > before).any(), name


@pytest.mark.parametrize(
    ("change", "message"),
    [({"dtype": "float4"}, "no float4 peak"), ({"plan": Parallelism(3)}, "cannot be divided"),
     ({"plan": Parallelism(expert=3)}, "cannot be spread")],
)  # fmt: skip
def test_what_cannot_be_priced_is_refused(work, change, message):
    with pytest.raises(InvalidInput, match=message):
        seconds(made(work, **change))
