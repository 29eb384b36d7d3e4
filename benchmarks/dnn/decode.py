"""Layers of language models in decoding: products in half precision, and layers sharded over 2, 4 and 8 GPUs.

Vidur timed them on A40, A100 and H100 (MIT). Products are predicted from specifications, sharded layers from the
whole layer.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.dnn.kernel_data import DEVICES, layer_products, product_op
from benchmarks.dnn.splits import LEVEL, Array, SplitResult, Texts
from benchmarks.tables import Columns, read_table, select_rows
from leadline.catalog.read import TomlCatalog
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TensorSpec
from leadline.estimators.parallelism.tensor import tensor_share
from leadline.estimators.step_time.roofline import RooflineKernels
from leadline.uncertainty.normalized_scores import NormalizedScores

DTYPE = "float16"
BESIDE = ("input_layernorm", "post_attention_layernorm", "mlp_act", "add")
"""The timed parts of a layer other than products: norms and the residual addition, which each GPU computes whole, and
the activation, which is sharded."""
PARTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", *BESIDE)


def shared_layers(table: str, columns: Columns, models: Mapping[str, RooflineKernels]) -> SplitResult:
    """Return the split of sharded layers: the measured whole layer times the predicted share of one GPU.

    The baseline is an even share; intervals are those of the other devices' errors.
    """
    measured = np.sum([columns[f"time_stats.{part}.median"] for part in PARTS], axis=0) / 1e3
    ways = columns["num_tensor_parallel_workers"].astype(int)
    keys = list(zip(columns["device"].tolist(), columns["model"].tolist(), columns["num_tokens"].tolist(), strict=True))
    whole = {key: place for place, key in enumerate(keys) if ways[place] == 1 and np.isfinite(measured[place])}
    rows = [i for i, key in enumerate(keys) if ways[i] > 1 and key in whole and np.isfinite(measured[i])]
    first = np.array([whole[keys[i]] for i in rows])
    kept = {name: values[first] for name, values in columns.items()}
    shares = _shares(kept, ways[rows], models)
    device, sharded_s = columns["device"][rows], measured[rows]
    predicted, even = measured[first] * shares, measured[first] / ways[rows]
    group = np.array([f"{count} GPUs" for count in ways[rows]])
    low, high = by_other_devices(device, ways[rows].astype(float), predicted, sharded_s, alike=0.1)
    return SplitResult(
        table, "decode layers shared by GPUs, whole layer measured", sharded_s,
        {"Leadline": predicted, "an even share": even}, low, high, group,
        how="predicted share of the predicted whole; intervals from the other two devices",
    )  # fmt: skip


def by_other_devices(device: Texts, size: Array, point: Array, measured: Array, *, alike: float) -> tuple[Array, Array]:
    """Return the ends of 90 % intervals (n,) from the errors on the other devices.

    Errors are weighted by the distance of their ``size`` in logarithms, with the scale ``alike`` (localised conformal
    prediction, Guan 2023).
    """
    low, high, errors = point.copy(), point.copy(), np.abs(np.log(measured / point))
    for name in np.unique(device):
        elsewhere = np.flatnonzero(device != name)
        elsewhere = elsewhere[np.argsort(errors[elsewhere])]
        for value in np.unique(size[device == name]):
            weights = np.exp(-0.5 * (np.log(size[elsewhere] / value) / alike) ** 2)
            scores = NormalizedScores(errors[elsewhere], weights * len(weights) / weights.sum())
            mask = (device == name) & (size == value)
            low[mask], high[mask] = scores.interval(point[mask], np.ones(int(mask.sum())), LEVEL)
    return low, high


def _shares(columns: Columns, ways: np.ndarray, models: Mapping[str, RooflineKernels]) -> Array:
    """Return the predicted share of one of ``ways`` GPUs in the time of the whole layer (n,)."""
    shares = np.empty(len(ways))
    for place, graph in enumerate(_layers(columns)):
        kernels = models[str(columns["device"][place])]
        part, whole = (
            sum(kernels.op_s(op) for op in layer.ops) for layer in (tensor_share(graph, int(ways[place])), graph)
        )
        shares[place] = part / whole
    return shares


def _layers(columns: Columns) -> list[OpGraph]:
    products = [zip(*sizes, strict=True) for sizes in layer_products(columns).values()]
    sizes = zip(columns["num_tokens"], columns["n_embd"], columns["n_expanded_embd"], *products, strict=True)
    graphs = []
    for tokens, width, inner, *sides in sizes:
        m, stream, wide = int(tokens), (int(tokens), int(width)), (int(tokens), int(inner))
        ops = [product_op(m, int(n), int(k), DTYPE) for n, k in sides]
        norms = [_streamed("aten.rms_norm", OpKind.NORM, stream, 1)] * 2
        act = _streamed("aten.silu_and_mul", OpKind.ELEMENTWISE, wide, 2)
        add = _streamed("aten.add", OpKind.ELEMENTWISE, stream, 2)
        graphs.append(OpGraph((*ops, *norms, act, add)))
    return graphs


def _streamed(name: str, kind: OpKind, shape: tuple[int, int], operands: int) -> Op:
    size, spec = float(np.prod(shape)), TensorSpec(shape, DTYPE)
    return Op(name, kind, Stage.FORWARD, DTYPE, size, 2 * operands * size, 2 * size, (spec,) * operands, (spec,))


TABLE = "LLM decoding"
MOST_SEQUENCES = 256
"""Larger batches are rare in decoding, and their products are bound by arithmetic, like a prompt's."""
GROUPS = (
    (1, "1 sequence"),
    (8, "2 to 8 sequences"),
    (32, "16 to 32 sequences"),
    (MOST_SEQUENCES, "40 to 256 sequences"),
)


def splits(data: Path, *, quick: bool = False) -> list[SplitResult]:
    """Return the splits of layers from specifications and of sharded layers; ``quick`` takes a tenth."""
    columns = read_table(data, "vidur_llm_layers")
    sequences = columns["num_tokens"].astype(int)
    chosen = np.flatnonzero(sequences <= MOST_SEQUENCES)
    if quick:
        chosen = chosen[np.isin(sequences[chosen], np.unique(sequences[chosen])[::10])]
    columns, sequences = select_rows(columns, chosen), sequences[chosen]
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
            how="from specifications; the roofline's fill and slices of inner sums were chosen on these profiles; "
            "intervals from the errors on the other two devices",
            more={"by_device_and_sequences": _errors(columns, sequences, point)},
        ),
        shared_layers(TABLE, columns, models),
    ]


def _measured_s(columns: Columns) -> Array:
    parts = [columns[f"time_stats.{part}.median"] for part in layer_products(columns)]
    seconds: Array = np.sum(parts, axis=0) / 1e3
    return seconds


def _answers(columns: Columns, models: dict[str, RooflineKernels]) -> tuple[Array, Array, Array]:
    """Return the seconds of each layer's four products by the kernel model, by traffic and by arithmetic."""
    seconds = np.zeros((3, len(columns["device"])))
    for sizes in layer_products(columns).values():
        table = zip(columns["device"], columns["num_tokens"], *sizes, strict=True)
        for place, (name, m, n, k) in enumerate(table):
            model, op = models[str(name)], product_op(int(m), int(n), int(k), DTYPE)
            seconds[:, place] += (model.op_s(op), *_bounds(model, op))
    return seconds[0], seconds[1], seconds[2]


def _bounds(model: RooflineKernels, op: Op) -> tuple[float, float]:
    traffic_s = (op.bytes_read + op.bytes_written) / (model.device.memory_bytes_per_s or math.inf)
    return traffic_s, op.flops / model.peak(op)


def _groups(sequences: np.ndarray) -> Texts:
    ends = np.array([most for most, _ in GROUPS])
    return np.array([name for _, name in GROUPS])[np.searchsorted(ends, sequences)]


def _errors(columns: Columns, sequences: np.ndarray, point: Array) -> dict[str, dict[str, float]]:
    """Return the mean absolute percentage error by device and number of sequences, powers of two alone."""
    error = 100 * np.abs(point / _measured_s(columns) - 1)
    errors: dict[str, dict[str, float]] = {}
    for name in np.unique(columns["device"]).tolist():
        for count in np.unique(sequences).tolist():
            mask = (columns["device"] == name) & (sequences == count)
            if mask.any() and count & (count - 1) == 0:
                errors.setdefault(DEVICES[name], {})[str(count)] = round(float(error[mask].mean()), 2)
    return errors
