"""Candidate layouts: each divides the job, none is listed twice, and they cover what people use."""

import pytest
from msgspec.structs import replace

from leadline.core.workload import Fusion, Parallelism, Recompute, Sharding
from leadline.estimators.parallelism.layouts import candidate_layouts, describe_layout
from tests.training.test_decoder_steps import LAYERS, work

QUESTION = {"gpus": 64, "global_batch": 256, "island": 8}


@pytest.fixture(scope="module")
def layouts():
    return list(candidate_layouts(work(), Parallelism(fusion=Fusion.LIBRARY), **QUESTION))


def test_each_layout_trains_the_global_batch_on_all_gpus(layouts):
    for layout in layouts:
        replicas = layout.plan.copies(64)
        assert replicas * layout.batch * layout.microbatches == 256
        assert LAYERS % (layout.plan.pipeline * layout.plan.virtual) == 0
        assert layout.plan.tensor <= 8
        assert layout.plan.fusion is Fusion.LIBRARY
    assert len({(layout.plan, layout.batch, layout.recompute) for layout in layouts}) == len(layouts)


@pytest.mark.parametrize(
    "plan",
    [Parallelism(1, 1, Sharding.FULL), Parallelism(8, 1, Sharding.OPTIMIZER), Parallelism(4, 4, Sharding.OPTIMIZER),
     Parallelism(4, 4, Sharding.OPTIMIZER, virtual=2), Parallelism(8, 8, Sharding.NONE)],
    ids=str,
)  # fmt: skip
def test_layouts_that_people_use_are_candidates(layouts, plan):
    wanted = replace(plan, fusion=Fusion.LIBRARY)
    assert {layout.recompute for layout in layouts if layout.plan == wanted} == set(Recompute)


def test_experts_and_long_sequences_are_divided():
    routed = work(experts=8)
    assert {8} < {each.plan.expert for each in candidate_layouts(routed, Parallelism(), **QUESTION)} <= {1, 2, 4, 8}
    long = replace(work(), sequence=131072)
    assert {each.plan.context for each in candidate_layouts(long, Parallelism(), **QUESTION)} >= {1, 8}
    assert {each.plan.context for each in candidate_layouts(work(), Parallelism(), **QUESTION)} == {1}


def test_a_batch_that_no_replicas_divide_has_few_layouts():
    found = list(candidate_layouts(work(), Parallelism(), gpus=64, global_batch=1, island=8))
    assert found
    assert all(layout.plan.parts == 64 for layout in found)
    assert not list(candidate_layouts(replace(work(), attention_blocks=1.0), Parallelism(), gpus=64, global_batch=1,
                                      island=8))  # fmt: skip


def test_a_layout_reads_like_its_options(layouts):
    texts = [describe_layout(layout) for layout in layouts]
    assert any(text.startswith("tensor 4, pipeline 4, virtual stages 2; sharding optimizer") for text in texts)
    assert any(text.startswith("data parallelism alone; sharding full") for text in texts)
