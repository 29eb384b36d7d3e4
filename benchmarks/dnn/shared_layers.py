"""Layers of language models that GPUs share: what one of 2, 4 and 8 takes, told from the layer whole (Vidur, MIT)."""

from collections.abc import Mapping

import numpy as np

from benchmarks.dnn.asked import LEVEL, Array, Asked, Texts
from benchmarks.dnn.data import Columns
from benchmarks.dnn.kernel_data import layer_products, product
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TensorSpec
from leadline.estimators.roofline import SpecsKernels
from leadline.estimators.tensor_share import tensor_share
from leadline.uncertainty.absolute import Scores

DTYPE = "float16"
BESIDE = ("input_layernorm", "post_attention_layernorm", "mlp_act", "add")
"""What was timed of a layer beside its products: norms and the residual addition, which each GPU does whole, and the
activation, which is shared."""
PARTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", *BESIDE)


def shared_layers(table: str, columns: Columns, models: Mapping[str, SpecsKernels]) -> Asked:
    """Return the split: the measured whole layer, times how the priced graph changes when it is shared.

    Beside it stands an even share; intervals are those of the other devices' errors.
    """
    measured = np.sum([columns[f"time_stats.{part}.median"] for part in PARTS], axis=0) / 1e3
    ways = columns["num_tensor_parallel_workers"].astype(int)
    keys = list(zip(columns["device"].tolist(), columns["model"].tolist(), columns["num_tokens"].tolist(), strict=True))
    whole = {key: place for place, key in enumerate(keys) if ways[place] == 1 and np.isfinite(measured[place])}
    rows = [i for i, key in enumerate(keys) if ways[i] > 1 and key in whole and np.isfinite(measured[i])]
    first = np.array([whole[keys[i]] for i in rows])
    kept = {name: values[first] for name, values in columns.items()}
    shares = _shares(kept, ways[rows], models)
    device, held = columns["device"][rows], measured[rows]
    told, even = measured[first] * shares, measured[first] / ways[rows]
    group = np.array([f"{count} GPUs" for count in ways[rows]])
    low, high = by_other_devices(device, ways[rows].astype(float), told, held, alike=0.1)
    return Asked(
        table, "decode layers shared by GPUs, whole layer measured", held, {"Leadline": told, "an even share": even},
        low, high, group, how="by the priced share of the priced whole; intervals from the other two devices",
    )  # fmt: skip


def by_other_devices(device: Texts, size: Array, point: Array, measured: Array, *, alike: float) -> tuple[Array, Array]:
    """Return the ends of 90 % intervals (n,): what the errors were on the other devices.

    There each weighs by how near its ``size`` is, in logarithms, of which a difference of ``alike`` changes little
    (localised conformal prediction, Guan 2023).
    """
    low, high, errors = point.copy(), point.copy(), np.abs(np.log(measured / point))
    for name in np.unique(device):
        others = np.flatnonzero(device != name)
        others = others[np.argsort(errors[others])]
        for one in np.unique(size[device == name]):
            weights = np.exp(-0.5 * (np.log(size[others] / one) / alike) ** 2)
            scores = Scores(errors[others], weights * len(weights) / weights.sum())
            own = (device == name) & (size == one)
            low[own], high[own] = scores.interval(point[own], np.ones(int(own.sum())), LEVEL)
    return low, high


def _shares(columns: Columns, ways: np.ndarray, models: Mapping[str, SpecsKernels]) -> Array:
    """Return the priced share of one of ``ways`` GPUs in the time of the whole layer (n,)."""
    found = np.empty(len(ways))
    for place, graph in enumerate(_layers(columns)):
        kernels = models[str(columns["device"][place])]
        part, whole = (
            sum(kernels.op_s(op) for op in one.ops) for one in (tensor_share(graph, int(ways[place])), graph)
        )
        found[place] = part / whole
    return found


def _layers(columns: Columns) -> list[OpGraph]:
    products = [zip(*sizes, strict=True) for sizes in layer_products(columns).values()]
    sizes = zip(columns["num_tokens"], columns["n_embd"], columns["n_expanded_embd"], *products, strict=True)
    found = []
    for tokens, width, inner, *sides in sizes:
        m, stream, wide = int(tokens), (int(tokens), int(width)), (int(tokens), int(inner))
        ops = [product(m, int(n), int(k), DTYPE) for n, k in sides]
        norms = [_streamed("aten.rms_norm", OpKind.NORM, stream, 1)] * 2
        act = _streamed("aten.silu_and_mul", OpKind.ELEMENTWISE, wide, 2)
        add = _streamed("aten.add", OpKind.ELEMENTWISE, stream, 2)
        found.append(OpGraph((*ops, *norms, act, add)))
    return found


def _streamed(name: str, kind: OpKind, shape: tuple[int, int], operands: int) -> Op:
    size, spec = float(np.prod(shape)), TensorSpec(shape, DTYPE)
    return Op(name, kind, Stage.FORWARD, DTYPE, size, 2 * operands * size, 2 * size, (spec,) * operands, (spec,))
