"""The graphs that are shipped, and the splits over measured steps where those are at hand."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.dnn.vision import bounds_by_fold
from benchmarks.dnn.vision_data import family_of, graph_of
from benchmarks.dnn.vision_graphs import vision_graphs
from benchmarks.dnn.vision_lab import rows_without_twins
from leadline.core.graph import OpKind, Stage


@pytest.fixture(scope="module")
def graphs():
    return vision_graphs()


@pytest.fixture(scope="module")
def data():
    folder = os.environ.get("LEADLINE_DATA")
    if not folder or not Path(folder, "timm_steps.parquet").is_file():
        pytest.skip("LEADLINE_DATA names no folder with timm_steps.parquet")
    return Path(folder)


def products(graph):
    return sum(op.flops * op.count for op in graph.ops if op.kind in (OpKind.CONV, OpKind.GEMM)) / 2


def test_a_shipped_graph_has_the_published_weights_and_products(graphs):
    resnet = graphs.find("resnet50", 224, "inference", explicit=False)
    assert resnet.parameters == 25_557_032
    assert pytest.approx(4.1e9, rel=0.01) == products(graphs.graph(resnet, 1))


def test_work_grows_with_the_batch_and_weights_do_not(graphs):
    packed = graphs.find("resnet50", 224, "training", explicit=False)
    one, many = graphs.graph(packed, 1), graphs.graph(packed, 64)
    assert pytest.approx(64.0, rel=1e-3) == products(many) / products(one)
    update = [sum(op.bytes_read for op in graph.ops if op.stage is Stage.OPTIMIZER) for graph in (one, many)]
    assert update[0] == update[1] > 0


def test_a_training_step_does_three_times_the_products_of_a_forward_pass(graphs):
    forward, step = (
        products(graphs.graph(graphs.find("resnet50", 224, phase, explicit=False), 8))
        for phase in ("inference", "training")
    )
    assert pytest.approx(3.0, rel=0.03) == step / forward


def test_attention_is_fused_or_written_out(graphs):
    name = ("vit_base_patch16_224", 224, "inference")
    fused, explicit = (graphs.find(*name, explicit=one) for one in (False, True))

    def kinds(packed):
        return {graphs.packed.ops[one].kind for one in packed.ops}

    assert OpKind.ATTENTION in kinds(fused)
    assert OpKind.ATTENTION not in kinds(explicit)
    assert OpKind.SOFTMAX in kinds(explicit)
    assert not graphs.falls_back(fused)


def test_every_read_is_of_an_op_of_the_same_graph(graphs):
    for packed in graphs.packed.graphs[::50]:
        assert all(0 <= one < len(packed.ops) for sources in packed.sources for one in sources)
        assert len(packed.ops) == len(packed.counts) == len(packed.sources)


def test_a_model_that_is_not_there_is_not_found(graphs):
    assert graphs.find("resnet50", 17, "inference", explicit=False) is None


def test_families_are_the_letters_of_a_name():
    assert [family_of(one) for one in ("resnet101d", "vit_tiny_patch16_224", "tf_efficientnet_b0", "eca_nfnet_l0")] == [
        "resnet",
        "vit",
        "tf",
        "eca",
    ]


def test_models_that_were_rewritten_since_are_left_out_of_old_releases(graphs):
    weights = graphs.find("tresnet_m", 224, "inference", explicit=False).parameters / 1e6
    same = {"model": ["tresnet_m"] * 2, "img_size": [224] * 2, "mode": ["infer"] * 2, "param_count": [weights] * 2}
    columns = {name: np.array(values) for name, values in same.items()} | {"torch": np.array(["113", "240"])}
    assert graph_of(columns, 0, graphs) is None
    assert graph_of(columns, 1, graphs) is not None


def test_intervals_of_a_fold_rest_on_the_errors_of_the_others():
    steps = SimpleNamespace(
        step_s=np.r_[np.full(40, 1.0), np.full(40, 1.2)], model=np.array([f"m{i}" for i in range(80)])
    )
    lab = SimpleNamespace(steps=steps, setting=np.array(["one setting"] * 80))
    said, fold = np.ones(80), np.repeat([0, 1], 40)
    low, high = bounds_by_fold(lab, np.arange(80), fold, said, np.full(80, np.nan))
    assert pytest.approx(np.full(40, 1.2), rel=0.05) == high[:40].tolist()
    assert pytest.approx(np.full(40, 1.0), rel=0.05) == low[40:].tolist()
    alone, _ = bounds_by_fold(lab, np.arange(40), np.zeros(40, int), said[:40], np.full(40, np.nan))
    assert pytest.approx(np.ones(40), rel=0.05) == alone.tolist()


def test_a_held_out_model_has_no_twin_under_another_name_in_the_training_data():
    model = np.array(["resnet18", "resnet18", "gluon_resnet18", "resnet50", "vit"])
    shape = np.array([0, 1, 0, 2, 3])  # the second image size of resnet18 has no twin
    learn = rows_without_twins(np.array([2, 3, 4]), np.array([1]), model, shape)
    assert learn.tolist() == [3, 4]


@pytest.mark.slow
def test_a_law_is_carried_to_another_gpu_by_its_units_better_than_by_its_roofline_alone(data):
    from benchmarks.dnn.vision_lab import VisionLab, carried_to, inference, nearest_setting

    lab = VisionLab(data)
    laws = lab.laws(inference(lab, "rtx3090"))
    ask = np.flatnonzero(lab.setting == "rtx4090 infer nchw 240")
    near = nearest_setting(laws, lab, ask, "rtx3090")
    by_units, alone = (
        np.abs(lab.priced(ask, basis, laws, near).step_s / lab.steps.step_s[ask] - 1).mean()
        for basis in (carried_to("rtx3090", "rtx4090"), "rtx4090")
    )
    assert by_units < 0.07
    assert by_units < alone


@pytest.mark.slow
def test_families_left_out_are_priced_better_than_by_their_roofline(data):
    from benchmarks.dnn.vision_lab import VisionLab, fold_numbers

    lab = VisionLab(data)
    fold = fold_numbers(lab.steps.family, 5, 0)
    assert set(lab.steps.family[fold == 0]).isdisjoint(lab.steps.family[fold != 0])
    learn, ask = np.flatnonzero(fold != 0), np.flatnonzero(fold == 0)
    said, spread = lab.answered(ask, lab.laws(learn))
    error = np.abs(said / lab.steps.step_s[ask] - 1).mean()
    plain = lab.baselines.answers(learn, ask)["fitted roofline"]
    assert error < 0.07 < np.abs(plain / lab.steps.step_s[ask] - 1).mean()
    assert (spread > 0).all()
