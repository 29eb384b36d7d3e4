"""Layers of language models that GPUs share: what one of 2, 4 and 8 takes, told from the layer whole (Vidur, MIT)."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.dnn.kernel_data import DEVICES, layer_products, product_op
from benchmarks.dnn.splits import LEVEL, Array, SplitResult, Texts
from benchmarks.dnn.tables import Columns, read_table, select_rows
from leadline.catalog.read import TomlCatalog
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TensorSpec
from leadline.estimators.parallelism.tensor import tensor_share
from leadline.estimators.step_time.roofline import RooflineKernels
from leadline.uncertainty.normalized_scores import NormalizedScores

DTYPE = "float16"
BESIDE = ("input_layernorm", "post_attention_layernorm", "mlp_act", "add")
"""What was timed of a layer beside its products: norms and the residual addition, which each GPU does whole, and the
activation, which is shared."""
PARTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", *BESIDE)


def shared_layers(table: str, columns: Columns, models: Mapping[str, RooflineKernels]) -> SplitResult:
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
    return SplitResult(
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
            scores = NormalizedScores(errors[others], weights * len(weights) / weights.sum())
            own = (device == name) & (size == one)
            low[own], high[own] = scores.interval(point[own], np.ones(int(own.sum())), LEVEL)
    return low, high


def _shares(columns: Columns, ways: np.ndarray, models: Mapping[str, RooflineKernels]) -> Array:
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
        ops = [product_op(m, int(n), int(k), DTYPE) for n, k in sides]
        norms = [_streamed("aten.rms_norm", OpKind.NORM, stream, 1)] * 2
        act = _streamed("aten.silu_and_mul", OpKind.ELEMENTWISE, wide, 2)
        add = _streamed("aten.add", OpKind.ELEMENTWISE, stream, 2)
        found.append(OpGraph((*ops, *norms, act, add)))
    return found


def _streamed(name: str, kind: OpKind, shape: tuple[int, int], operands: int) -> Op:
    size, spec = float(np.prod(shape)), TensorSpec(shape, DTYPE)
    return Op(name, kind, Stage.FORWARD, DTYPE, size, 2 * operands * size, 2 * size, (spec,) * operands, (spec,))


TABLE = "LLM decoding"
MOST_SEQUENCES = 256
"""Larger batches are rare at decode, and their products are bound by arithmetic as a prompt's are."""
GROUPS = (
    (1, "1 sequence"),
    (8, "2 to 8 sequences"),
    (32, "16 to 32 sequences"),
    (MOST_SEQUENCES, "40 to 256 sequences"),
)


def splits(data: Path, *, quick: bool = False) -> list[SplitResult]:
    """Return the splits: layers from specifications, and shared ones from the whole; ``quick`` takes a tenth."""
    columns = read_table(data, "vidur_llm_layers")
    sequences = columns["num_tokens"].astype(int)
    own = np.flatnonzero(sequences <= MOST_SEQUENCES)
    if quick:
        own = own[np.isin(sequences[own], np.unique(sequences[own])[::10])]
    columns, sequences = select_rows(columns, own), sequences[own]
    models = {
        name: RooflineKernels(TomlCatalog().device(DEVICES[name])) for name in np.unique(columns["device"]).tolist()
    }
    point, bandwidth, peak = _answers(columns, models)
    measured, groups = _measured_s(columns), _groups(sequences)
    low, high = by_other_devices(columns["device"], sequences.astype(float), point, measured, alike=math.log(4))
    return [
        SplitResult(
            TABLE,
            "decode layers, specs only",
            measured,
            {"Leadline": point, "weights over bandwidth": bandwidth, "FLOPs over peak": peak},
            low,
            high,
            groups,
            how="from specifications; of the law, the fill and the slices of inner sums were chosen on these profiles; "
            "intervals from the errors on the other two devices",
            more={"by_device_and_sequences": _errors(columns, sequences, point)},
        ),
        shared_layers(TABLE, columns, models),
    ]


def _measured_s(columns: Columns) -> Array:
    parts = [columns[f"time_stats.{part}.median"] for part in layer_products(columns)]
    found: Array = np.sum(parts, axis=0) / 1e3
    return found


def _answers(columns: Columns, models: dict[str, RooflineKernels]) -> tuple[Array, Array, Array]:
    """Return the seconds of each layer's four products: by the kernel model, by traffic alone, by arithmetic alone."""
    found = np.zeros((3, len(columns["device"])))
    for sizes in layer_products(columns).values():
        table = zip(columns["device"], columns["num_tokens"], *sizes, strict=True)
        for place, (name, m, n, k) in enumerate(table):
            model, op = models[str(name)], product_op(int(m), int(n), int(k), DTYPE)
            found[:, place] += (model.op_s(op), *_bounds(model, op))
    return found[0], found[1], found[2]


def _bounds(model: RooflineKernels, op: Op) -> tuple[float, float]:
    traffic_s = (op.bytes_read + op.bytes_written) / (model.device.memory_bytes_per_s or math.inf)
    return traffic_s, op.flops / model.peak(op)


def _groups(sequences: np.ndarray) -> Texts:
    ends = np.array([most for most, _ in GROUPS])
    return np.array([name for _, name in GROUPS])[np.searchsorted(ends, sequences)]


def _errors(columns: Columns, sequences: np.ndarray, point: Array) -> dict[str, dict[str, float]]:
    """Return the mean absolute percentage error by device and number of sequences, powers of two alone."""
    error = 100 * np.abs(point / _measured_s(columns) - 1)
    found: dict[str, dict[str, float]] = {}
    for name in np.unique(columns["device"]).tolist():
        for count in np.unique(sequences).tolist():
            own = (columns["device"] == name) & (sequences == count)
            if own.any() and count & (count - 1) == 0:
                found.setdefault(DEVICES[name], {})[str(count)] = round(float(error[own].mean()), 2)
    return found
