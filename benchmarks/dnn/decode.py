"""Layers of language models that decode: their products of half precision, timed by Vidur on A40, A100 and H100 (MIT).

Of a decode step each layer has four products, whose rows are the sequences of the batch; Vidur timed them for Llama-2,
CodeLlama, Qwen, Phi-2 and others, whole and shared by two, four and eight GPUs. Attention itself was not timed.
"""

import math
from pathlib import Path

import numpy as np

from benchmarks.dnn.asked import Array, Asked, Texts
from benchmarks.dnn.data import Columns, read, rows
from benchmarks.dnn.kernel_data import DEVICES, layer_products, product
from benchmarks.dnn.shared_layers import by_other_devices, shared_layers
from leadline.catalog.read import TomlCatalog
from leadline.core.graph import Op
from leadline.estimators.roofline import SpecsKernels

TABLE = "LLM decoding"
MOST_SEQUENCES = 256
"""Larger batches are rare at decode, and their products are bound by arithmetic as a prompt's are."""
GROUPS = (
    (1, "1 sequence"),
    (8, "2 to 8 sequences"),
    (32, "16 to 32 sequences"),
    (MOST_SEQUENCES, "40 to 256 sequences"),
)
DTYPE = "float16"


def asked(data: Path, *, quick: bool = False) -> list[Asked]:
    """Return the splits: layers from specifications, and shared ones from the whole; ``quick`` takes a tenth."""
    columns = read(data, "vidur_llm_layers")
    sequences = columns["num_tokens"].astype(int)
    own = np.flatnonzero(sequences <= MOST_SEQUENCES)
    if quick:
        own = own[np.isin(sequences[own], np.unique(sequences[own])[::10])]
    columns, sequences = rows(columns, own), sequences[own]
    models = {name: SpecsKernels(TomlCatalog().device(DEVICES[name])) for name in np.unique(columns["device"]).tolist()}
    point, bandwidth, peak = _answers(columns, models)
    measured, groups = _measured_s(columns), _groups(sequences)
    low, high = by_other_devices(columns["device"], sequences.astype(float), point, measured, alike=math.log(4))
    return [
        Asked(
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


def _answers(columns: Columns, models: dict[str, SpecsKernels]) -> tuple[Array, Array, Array]:
    """Return the seconds of each layer's four products: by the kernel model, by traffic alone, by arithmetic alone."""
    found = np.zeros((3, len(columns["device"])))
    for sizes in layer_products(columns).values():
        table = zip(columns["device"], columns["num_tokens"], *sizes, strict=True)
        for place, (name, m, n, k) in enumerate(table):
            model, op = models[str(name)], product(int(m), int(n), int(k), DTYPE)
            found[:, place] += (model.op_s(op), *_bounds(model, op))
    return found[0], found[1], found[2]


def _bounds(model: SpecsKernels, op: Op) -> tuple[float, float]:
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
