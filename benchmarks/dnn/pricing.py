"""The time of the learned kernel model to predict graphs, its size, and its time to load."""

import io
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.dnn.fit_kernels import fitted_on_all
from benchmarks.dnn.kernel_data import product_op, streamed_op
from benchmarks.dnn.kernel_fitting import dump_kernels, interpolate_kernels, predict_steps_s
from benchmarks.results import BenchmarkRow, at_most
from leadline.catalog.read import TomlCatalog
from leadline.core.graph import Op, OpGraph, OpKind
from leadline.core.hardware import Device
from leadline.estimators.step_time.fitted_kernels import FittedKernels, LearnedKernels
from leadline.estimators.step_time.kernel_table import tabulate_ops
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationKernels
from leadline.training.decoder_steps import shipped_step_model
from leadline.training.shipped_files import SHIPPED_FOLDER
from leadline.training.shipped_models import shipped_kernels, shipped_op_utilization

DEVICES = ("A100 SXM4 80GB", "H100 SXM5 80GB", "V100 SXM2 32GB", "T4", "L4", "RTX 3090", "A40", "H200 SXM")
REPEATS = 5


def rows(data: Path, *, quick: bool = False) -> list[BenchmarkRow]:
    """Return the time of a graph of 3,000 ops, its growth, and the time of 1,000 configurations and of loading."""
    fitted = fitted_on_all(data, share=20 if quick else 5)
    kept = io.BytesIO()
    np.savez_compressed(kept, **dump_kernels(fitted))  # type: ignore[arg-type]
    load_s = _median_s(lambda: _loaded(kept.getvalue()))
    device = TomlCatalog().device(DEVICES[0])
    model = LearnedKernels(fitted, device)
    repeated, distinct, double = layers(200, alike=True), layers(200, alike=False), layers(400, alike=False)
    model.step_s(repeated)
    alike_s, distinct_s, double_s = (_step_s(model, graph) for graph in (repeated, distinct, double))
    configuration_s = configurations_s(fitted)
    return [
        at_most(
            "pricing a graph of 3,000 ops of alike layers", 1e3 * alike_s, 50.0, "ms", how=f"{len(repeated.ops)} ops"
        ),
        at_most(
            "pricing a graph of 3,000 ops, all different", 1e3 * distinct_s, 50.0, "ms", how=f"{len(distinct.ops)} ops"
        ),
        at_most("time of twice the ops, all different", double_s / distinct_s, 2.3, "×", how="linear in the ops"),
        at_most(
            "pricing one of 1,000 configurations",
            1e3 * configuration_s,
            1.0,
            "ms",
            how="125 batches on 8 GPUs, 32 alike layers",
        ),
        at_most("kept state of the kernel model", len(kept.getvalue()) / 1e6, 3.0, "MB", how="npz, compressed"),
        at_most("loading the kernel model", load_s, 0.2, "s", how=f"median of {REPEATS}"),
        *_shipped(device, distinct),
    ]


def _shipped(device: Device, graph: OpGraph) -> list[BenchmarkRow]:
    """Return the size of the shipped models, their time to load, and the op model's time for a graph."""
    files = list(SHIPPED_FOLDER.iterdir())
    size = sum(file.stat().st_size for file in files)
    laws, devices = shipped_op_utilization(), TomlCatalog(None).device
    law_s = _median_s(lambda: OpUtilizationKernels(laws, device, graph, devices=devices).step_s(graph))
    loaded_s = _median_s(
        lambda: [load.__wrapped__() for load in (shipped_op_utilization, shipped_kernels, shipped_step_model)]
    )
    return [
        at_most("the same graph by the op model", 1e3 * law_s, 50.0, "ms", how=f"{len(graph.ops)} ops, all different"),
        at_most("all shipped models", size / 1e6, 20.0, "MB", how=f"{len(files)} files"),
        at_most("loading op models, kernels and decoders' steps", loaded_s, 0.5, "s", how=f"median of {REPEATS}"),
    ]


def layers(count: int, *, alike: bool, batch: int = 8, width: int = 1024) -> OpGraph:
    """Return ``count`` transformer layers of 15 ops each; unless ``alike``, each is wider than the last."""
    ops: list[Op] = []
    for number in range(count):
        ops += _layer(batch, width if alike else width + 8 * number)
    return OpGraph(tuple(ops), source="bench")


def configurations_s(fitted: FittedKernels) -> float:
    """Return the seconds of one of 1,000 configurations of a graph: batches on devices, predicted together."""
    few, many = (tabulate_ops(layers(32, alike=True, batch=batch).ops) for batch in (1, 125))
    chosen = [TomlCatalog().device(name) for name in DEVICES]

    def priced() -> None:
        batches = [interpolate_kernels(few, many, (batch - 1) / 124) for batch in range(1, 126)]
        tables = [table for table in batches for _ in chosen]
        predict_steps_s(fitted, tables, [device for _ in batches for device in chosen])

    return _median_s(priced) / 1000


def _layer(batch: int, width: int) -> list[Op]:
    tokens, heads, length = batch * 512, width // 64, 512
    wide = (tokens, width)
    return [
        streamed_op("aten.native_layer_norm", OpKind.NORM, wide, 1),
        product_op(tokens, 3 * width, width),
        product_op(length, length, 64, b=batch * heads),
        streamed_op("aten.div.Scalar", OpKind.ELEMENTWISE, (batch * heads * length, length), 1),
        streamed_op("aten.add.Tensor", OpKind.ELEMENTWISE, (batch * heads * length, length), 2),
        streamed_op("aten._softmax", OpKind.SOFTMAX, (batch * heads * length, length), 1),
        product_op(length, 64, length, b=batch * heads),
        streamed_op("aten.clone", OpKind.COPY, wide, 1),
        product_op(tokens, width, width),
        streamed_op("aten.add.Tensor", OpKind.ELEMENTWISE, wide, 2),
        streamed_op("aten.native_layer_norm", OpKind.NORM, wide, 1),
        product_op(tokens, 4 * width, width),
        streamed_op("aten.gelu", OpKind.ELEMENTWISE, (tokens, 4 * width), 1),
        product_op(tokens, width, 4 * width),
        streamed_op("aten.add.Tensor", OpKind.ELEMENTWISE, wide, 2),
    ]


def _step_s(model: LearnedKernels, graph: OpGraph) -> float:
    return _median_s(lambda: model.step_s(graph))


def _loaded(kept: bytes) -> FittedKernels:
    with np.load(io.BytesIO(kept)) as state:
        return FittedKernels.load(dict(state))


def _median_s(call: Callable[[], object]) -> float:
    """Return the processor seconds of a call, which other programs do not stretch."""
    took = []
    for _ in range(REPEATS):
        began = time.process_time()
        call()
        took.append(time.process_time() - began)
    return statistics.median(took)
