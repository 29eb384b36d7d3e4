"""The shipped network is loaded without torch, and what is no network is refused in a sentence."""

import sys

import numpy as np
import pytest

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.learned.gnn import Setting
from leadline.training.graph_network import network_at, network_of, shipped_card, shipped_network

DEVICE = Device(
    "Like an RTX 3090", "nvidia", DeviceKind.GPU, memory_bytes_per_s=936e9, l2_bytes=6_291_456, compute_units=82,
    boost_hz=1.695e9, peak_flops_per_s={"float32": 35.6e12, "float16": 71e12, "tf32": 35.6e12},
)  # fmt: skip


def relu(size, sources=()):
    spec = TensorSpec((64, size, 56, 56), "float16")
    moved = 2.0 * 64 * size * 56 * 56
    return Op("aten.relu.default", OpKind.ELEMENTWISE, Stage.FORWARD, "float16", moved / 2, moved, moved, (spec,),
              (spec,), sources=sources)  # fmt: skip


def test_the_shipped_network_prices_a_graph_near_its_bandwidth():
    pytest.importorskip("onnxruntime")
    graph = [relu(64), relu(128, (0,)), relu(256, (1,))]
    moved = sum(op.bytes_read + op.bytes_written for op in graph)
    told = shipped_network().price([graph], DEVICE, Setting("infer", "nchw", 240))
    assert 0.8 * moved / 936e9 <= told[0] <= 2 * moved / 936e9


def test_a_step_twice_as_wide_takes_about_twice_as_long():
    pytest.importorskip("onnxruntime")
    told = shipped_network().price([[relu(256)], [relu(512)]], DEVICE, Setting("infer", "nchw", 240))
    assert pytest.approx(2.0, rel=0.25) == told[1] / told[0]


def test_the_card_says_how_far_off_the_network_is_on_families_it_had_not_seen():
    card = shipped_card()
    assert {"RTX 3090", "RTX 4090"} == set(card.devices)
    assert set(card.errors) == set(card.law)
    assert all(0 < one["median"] < one["mape"] < one["p90"] for one in card.errors.values())
    assert sum(one["n"] for one in card.errors.values()) == card.rows


def test_a_file_that_is_no_onnx_model_is_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "x.onnx").write_bytes(b"not a network")
    with pytest.raises(InvalidInput, match=r"x\.onnx is not an ONNX model"):
        network_at(tmp_path / "x.onnx")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="No such file or directory"):
        network_at(tmp_path / "absent.onnx")


def test_another_network_is_refused_by_its_inputs():
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Abs", ["x"], ["y"])], "g", [value], [out])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(InvalidInput, match="other has the inputs x, not kind, node"):
        network_of(model.SerializeToString(), "other")


def test_without_onnxruntime_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install 'leadline\[gnn\]'"):
        network_of(np.zeros(4).tobytes(), "any")
