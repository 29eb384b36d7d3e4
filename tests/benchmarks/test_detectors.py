"""Rows of makers' tables find their configuration and batch, traces come back as they were, and bounds are honest."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.detectors.batches import batch_of
from benchmarks.detectors.configurations import listed_model, matching_model, zoo_name
from benchmarks.detectors.graphs import DetectorPacker, pack_detectors, packed_graphs
from benchmarks.detectors.published import PublishedPeak, key_of, parse_number, published_peaks
from benchmarks.detectors.run import PeakPrediction, peak_bounds, peak_predictor, run
from leadline.core.errors import InvalidInput
from leadline.core.graph import Stage, StorageCategory, StorageEvent
from leadline.core.units import GIB
from leadline.estimators.memory.device import peak_memory
from leadline.estimators.memory.workspaces import Workspaces, add_scratch

DATA = Path(os.environ.get("LEADLINE_DATA", os.devnull))


def row(family="fcn", package="mmseg", **cells):
    told = {name.replace("_", " "): text for name, text in cells.items()}
    return PublishedPeak("key", package, family, GIB, {**told, "Mem (GB)": told.get("Mem", "5.7")})


def entry(name, accuracy, memory=5.7, family="fcn", package="mmseg"):
    results = [{"Dataset": "Cityscapes", "Metrics": {"mIoU": accuracy, "mIoU(ms+flip)": accuracy + 1}}]
    model = {"Name": name, "Config": f"configs/{family}/{name}.py", "Results": results}
    return listed_model({**model, "Metadata": {"Training Memory (GB)": memory}}, package, family)


def test_a_row_is_the_configuration_of_its_family_with_its_accuracies():
    models = [entry("fcn_r50", 72.25), entry("fcn_r101", 75.45), entry("pspnet_r50", 72.25, family="pspnet")]
    assert matching_model(row(mIoU="72.25"), models).name == "fcn_r50"
    assert matching_model(row(mIoU="75.45"), models).name == "fcn_r101"
    assert matching_model(row(mIoU="70.0", Backbone="R-18"), models) is None


def test_of_several_with_the_same_accuracy_the_memory_tells_and_else_nothing():
    models = [entry("fcn_r50", 72.25, 5.7), entry("fcn_r101", 72.25, 9.2)]
    assert matching_model(row(mIoU="72.25", Mem="9.2"), models).name == "fcn_r101"
    assert matching_model(row(mIoU="72.25", Mem="7.0"), models) is None


def test_schedules_of_one_model_are_one_step():
    models = [entry("fcn_r50_40k", 72.25), entry("fcn_r50_80k", 72.25)]
    assert matching_model(row(mIoU="72.25"), models).name == "fcn_r50_40k"


def test_a_row_without_its_accuracy_in_the_index_is_told_by_its_words():
    names = ["rpn_r50_fpn_1x_coco", "rpn_r50_caffe_fpn_1x_coco", "rpn_x101_32x4d_fpn_1x_coco", "rpn_r50_fpn_2x_coco"]
    models = [entry(name, 1.0, family="rpn", package="mmdet") for name in names]
    said = {"family": "rpn", "package": "mmdet", "AR1000": "58.2", "Lr_schd": "1x"}
    found = [
        matching_model(row(**said, Backbone=backbone, Style=style), models).name
        for backbone, style in (("R-50-FPN", "pytorch"), ("R-50-FPN", "caffe"), ("X-101-32x4d-FPN", "pytorch"))
    ]
    assert names[:3] == found


@pytest.mark.parametrize(
    ("package", "steps", "size"),
    [
        ("mmseg", [{"type": "Resize", "img_scale": (2048, 1024)}, {"type": "RandomCrop", "crop_size": (512, 1024)},
                   {"type": "Pad", "size": (512, 1024)}], (512, 1024)),
        ("mmdet", [{"type": "Resize", "img_scale": (1333, 800)}, {"type": "Pad", "size_divisor": 32}], (800, 1344)),
        ("mmdet", [{"type": "Resize", "img_scale": [(1333, 640), (1333, 800)]}, {"type": "Pad", "size_divisor": 32}],
         (800, 1344)),
        ("mmdet", [{"type": "Resize", "img_scale": (300, 300), "keep_ratio": False}], (300, 300)),
        ("mmdet", [{"type": "RandomCenterCropPad", "crop_size": (511, 511)}], (511, 511)),
        ("mmdet", [{"type": "AutoAugment", "policies": [[{"type": "Resize", "img_scale": [(480, 1333), (800, 1333)]}]]},
                   {"type": "Pad", "size_divisor": 1}], (800, 1333)),
    ],
)  # fmt: skip
def test_the_largest_batch_follows_from_the_steps_of_loading(package, steps, size):
    plain = {"data": {"samples_per_gpu": 2, "train": {"type": "Some", "pipeline": steps}}}
    assert (2, *size) == batch_of(plain, package)
    repeated = {"type": "Repeated", "times": 3, "dataset": [plain["data"]["train"]]}
    assert (4, *size) == batch_of({"data": {"samples_per_gpu": 4, "train": repeated}}, package)


@pytest.mark.parametrize(
    ("section", "name", "schedule", "file"),
    [
        ("Faster R-CNN:", "X101-FPN", "3x", "COCO-Detection/faster_rcnn_X_101_32x8d_FPN_3x.yaml"),
        ("RetinaNet:", "R50", "1x", "COCO-Detection/retinanet_R_50_FPN_1x.yaml"),
        ("RPN & Fast R-CNN:", "RPN R50-C4", "1x", "COCO-Detection/rpn_R_50_C4_1x.yaml"),
        ("COCO Instance Segmentation Baselines with Mask R-CNN", "R50-DC5", "3x",
         "COCO-InstanceSegmentation/mask_rcnn_R_50_DC5_3x.yaml"),
        ("COCO Panoptic Segmentation Baselines with Panoptic FPN", "R101-FPN", "3x",
         "COCO-PanopticSegmentation/panoptic_fpn_R_101_3x.yaml"),
        ("Other Settings", "GN (from scratch)", "9x", "Misc/scratch_mask_rcnn_R_50_FPN_9x_gn.yaml"),
        ("Cityscapes & Pascal VOC Baselines", "R50-C4, VOC", "", "PascalVOC-Detection/faster_rcnn_R_50_C4.yaml"),
        ("manually add TTA results", "above + test-time aug.", "", None),
    ],
)  # fmt: skip
def test_a_row_of_the_zoo_is_named_as_its_configuration(section, name, schedule, file):
    assert file == zoo_name(row("zoo", "detectron2", Section=section, Backbone=name, Lr_schd=schedule))


SIZES = {"n": 1, "c": 8, "k": 4, "h": 4, "w": 4, "r": 3, "s": 3, "groups": 1, "stride": 1, "dilation": 1}
STEP = {
    "parameters": 25, "parameter_bytes": 100,
    "stages": [["forward", 4], ["backward", 2]],
    "convolutions": [[2, "aten.convolution", SIZES], [3, "aten.convolution", {**SIZES, "r": 1, "s": 1}]],
    "events": [
        [0, 11, 100, "parameter"], [0, 12, 60, "gradient"], [1, 13, 40, "activation"], [2, 14, 50, "activation"],
        [3, 13, -40, "activation"], [3, 15, 7, "temporary"], [4, 15, -7, "temporary"], [4, 16, 500, "temporary"],
        [5, 16, -500, "temporary"], [5, 14, -50, "activation"],
    ],
}  # fmt: skip


def test_a_step_comes_back_from_the_packed_file_as_it_was(tmp_path):
    packer = DetectorPacker()
    numbers = [packer.add(STEP, (2, 512, 1024)), packer.add(STEP, (2, 512, 1024)), packer.add(STEP, (4, 512, 512))]
    assert numbers == [0, 0, 1]
    path = tmp_path / "packed.xz"
    pack_detectors(packer.packed({"torch": "2.13"}, {"key": ("fcn", 0)}, {"other": "no"}), path)
    packed = packed_graphs(path)
    graph = packed.graph(0)
    assert (graph.parameters, graph.parameter_bytes, graph.trained_bytes) == (25, 100, 60)
    assert [op.stage for op in graph.ops] == [Stage.FORWARD, Stage.FORWARD, Stage.BACKWARD]
    assert [size for _, _, size, _ in STEP["events"]] == [event.size_bytes for event in graph.events]
    assert [event.op for event in graph.events] == [0, 0, 1, 1, 2, 2, 2, 2, 3, 3]
    assert StorageEvent(3, 3, -50, StorageCategory.ACTIVATION) == graph.events[-1]
    assert peak_memory(graph).allocated_bytes == 100 + 60 + 50 + 500
    workspace = 4 * 36 * (8 + 4 + 8 * 4)
    assert (
        100 + 60 + 40 + 50 + workspace == peak_memory(add_scratch(graph, Workspaces(transformed=True))).allocated_bytes
    )


def test_a_row_is_named_by_what_it_says_whatever_the_order():
    assert key_of("a", "b", {"x": "1", "y": "2"}) == key_of("a", "b", {"y": "2", "x": "1"})
    assert key_of("a", "b", {"x": "1"}) != key_of("a", "c", {"x": "1"})
    assert (parse_number("5.7 GB"), parse_number("-")) == (5.7, None)


def test_every_shipped_step_says_more_than_its_weights():
    packed = packed_graphs()
    assert len(packed.graphs) >= 250
    assert {"torch", "mmcv", "mmsegmentation", "mmdet", "pb1-detectron2"} == set(packed.versions)
    assert all(0 <= place < len(packed.graphs) for _, place in packed.rows.values())
    for place in (0, len(packed.graphs) // 2, len(packed.graphs) - 1):
        graph = packed.graph(place)
        peak = peak_memory(graph)
        assert peak.allocated_bytes > 3 * graph.parameter_bytes > 0
        assert 0 < graph.trained_bytes <= graph.parameter_bytes


def test_buckets_and_workspaces_are_told_apart_from_tensors():
    packed = packed_graphs()
    key, (name, _) = next((key, told) for key, told in packed.rows.items() if told[1] == 0)
    told = peak_predictor(packed)(PublishedPeak(key, "mmseg", "any", GIB, {}))
    assert name == told.model
    assert told.point >= told.tensors + packed.graphs[0].trained_bytes


def test_a_bound_is_told_by_other_families_of_the_package_alone():
    def told(package, family, ratio):
        graph = packed_graphs().graphs[0]
        return PeakPrediction(PublishedPeak("", package, family, 100.0 * ratio, {}), "", graph, 100.0, 90.0)

    rows = [told("mmseg", "steady", 1.0) for _ in range(20)] + [told("mmseg", "wild", 2.0) for _ in range(20)]
    rows += [told("mmdet", family, 3.0) for family in ("one", "other") for _ in range(19)]
    assert peak_bounds(rows).tolist() == [200.0] * 20 + [100.0] * 20 + [300.0] * 38
    few = [*rows, told("detectron2", "rare", 9.0)]
    assert peak_bounds(few)[-1] == 300.0  # of all packages, as its own tells nothing
    with pytest.raises(InvalidInput, match="19"):
        peak_bounds(rows[:30])


def test_without_data_it_says_what_is_missing():
    with pytest.raises(InvalidInput, match="--data"):
        run()


def test_a_folder_without_the_table_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="openmmlab_memory"):
        run(data=tmp_path)


def test_a_table_of_other_models_is_refused(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    cells = json.dumps({"Backbone": "R-50", "Mem (GB)": "5.7", "mIoU": "1.0"})
    columns = {
        "project": ["mmsegmentation-v0.11", "mmdetection3d", "mmdetection-v2.11"], "path": ["a"] * 3,
        "family": ["fcn"] * 3,
        "section": ["s"] * 3, "mem_gb": ["5.7", "3.1", None], "cells": [cells] * 3,
    }  # fmt: skip
    parquet.write_table(arrow.table(columns), tmp_path / "openmmlab_memory.parquet")
    zoo = {"section": ["RetinaNet:"] * 2, "Name": ["R49"] * 2, "lr sched": ["1x"] * 2, "train mem (GB)": ["4.1", None]}
    parquet.write_table(arrow.table(zoo), tmp_path / "detectron2_memory.parquet")
    rows, others = published_peaks(tmp_path)
    found = [(one.package, one.family, one.memory_bytes) for one in rows]
    assert found == [("mmseg", "fcn", 5.7 * GIB), ("detectron2", "detectron2 RetinaNet:", 4.1 * GIB)]
    assert sorted(others.values()) == [1, 2]
    with pytest.raises(InvalidInput, match="none of the traced models"):
        run(data=tmp_path)


@pytest.mark.skipif(not DATA.is_dir(), reason="LEADLINE_DATA names no folder of measured data")
def test_a_quick_run_tells_every_row_and_bounds_by_other_families():
    result = run(quick=True, data=DATA)
    named = {one.name: one for one in result.rows}
    assert {"all: beyond the bound", "mmdetection: median error", "detectron2: median error", "rows left out"} <= set(
        named
    )
    assert {"weights × constant: median error", "plain boosting: median error"} <= set(named)
    assert named["all: median error"].value < named["all: median error"].baseline
    assert all(one["bound_gib"] > one["predicted_gib"] > one["parameters"] * 4 / GIB for one in result.details)
