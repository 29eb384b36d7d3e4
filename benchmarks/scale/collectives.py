"""Collectives by generation of the link: the fit, its test on generations left out, and the shipped file.

``python -m benchmarks.scale.collectives DATA FILE`` writes the file that the product reads.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.results import BenchmarkRow, within
from benchmarks.tables import read_table, select_rows
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import NORMAL_90
from leadline.core.hardware import PCIE_BYTES_PER_S
from leadline.estimators.parallelism.collectives import (
    CARRIED,
    HALF,
    OTHER,
    SLOT,
    Collective,
    CollectiveCurve,
    CurveCard,
    CurveFile,
    LinkCurves,
    collective_seconds,
)
from leadline.estimators.ports import Array, Columns, Mask

Texts = npt.NDArray[np.str_]

ORDER = tuple(Collective)
NAMES = {"alltoall": Collective.ALL_TO_ALL, "send_recv": Collective.SEND}  # where a table has another word
# Generation and GB/s of a device in both directions. L40S cards meet at slots of PCIe 4.
MEASURED = {
    "a100_sxm": ("NVLink 3", 600), "h100_sxm": ("NVLink 4", 900), "h200_sxm": ("NVLink 4", 900),
    "b200_sxm": ("NVLink 5", 1800), "gb200": ("NVLink 5", 1800), "l40s": (SLOT, 2 * PCIE_BYTES_PER_S[4] / 1e9),
    "a100_dgx": ("NVLink 3", 600), "h100_dgx": ("NVLink 4", 900),
    "a100_pairwise_nvlink": (SLOT, 2 * PCIE_BYTES_PER_S[4] / 1e9),
    "h100_pairwise_nvlink": (SLOT, 2 * PCIE_BYTES_PER_S[5] / 1e9),
}  # fmt: skip
TWICE = "a100_pairwise_nvlink"  # its sends are those of H100, and a pair is joined by a bridge
THINNED = 31  # every 31st size of Vidur's tables, which have a thousand

# Numbers of a curve: its start, and the deviations of generations from their mean before the fit.
STARTS = np.array([np.log(8e-6), 0.3, np.log(0.7), 0.5, np.log(0.6)])
DEVIATIONS = np.array([0.15, 0.07, 0.07, 0.1, 0.05])
NOISE = 0.1
LATENCY, EFFICIENCY = 0, 2  # places of these numbers
# Before any generation is fitted, latencies differ by 20 % from one to the next and efficiencies by 10 %. An assumption
# with the weight of two generations, since three are too few to estimate a spread from.
PRIOR, PRIOR_WEIGHT = np.array([0.2, 0.1]), 2
SHORTEST_S = 3e-4
LATENCY_BOUND, RATE_BOUND = 0.7, 0.3  # share of latency above and below which the one or the other decides


class CollectiveRows(Columns):
    """n measurements, arrays of shape (n,): ``work`` are the seconds of a link's bytes at its rate."""

    device: Texts
    generation: Texts
    kind: npt.NDArray[np.int64]
    devices: Array
    work: Array
    seconds: Array

    @property
    def curves(self) -> Texts:
        """Return the curve of each row: device, collective and number of devices."""
        parts = zip(self.device, self.kind, self.devices, strict=True)
        return np.array([f"{device} {kind} {devices}" for device, kind, devices in parts])


def _rows(device: Texts, kind: Texts, devices: Array, size: Array, seconds: Array) -> CollectiveRows:
    links = [MEASURED[name] for name in device]
    collectives = [NAMES.get(name) or Collective(name) for name in kind]
    rates = np.array([rate for _, rate in links]) * 1e9 / 2
    carried = np.array([CARRIED.get(each, HALF) for each in collectives])
    return CollectiveRows(
        device, np.array([name for name, _ in links]), np.array([ORDER.index(each) for each in collectives]),
        devices.astype(float), carried * size / rates, seconds.astype(float),
    )  # fmt: skip


def nccl_rows(data: Path) -> CollectiveRows:
    """Return NCCL's 16-bit collectives of aiconfigurator's table; sizes there count elements."""
    table = read_table(data, "aic_collectives")
    table = select_rows(table, (table["table"] == "nccl") & (table["nccl_dtype"] == "half"))
    size = 2 * table["message_size"].astype(float)  # two bytes an element
    return _rows(table["device"], table["op_name"], table["num_gpus"], size, table["latency_ms"] / 1e3)


def vidur_rows(data: Path) -> CollectiveRows:
    """Return all-reduces and sends in one node of Vidur's profiles, some of the sizes."""
    table = read_table(data, "vidur_collectives")
    folder = np.array([path.split("/")[-2] for path in table["path"]])
    kind, devices = table["collective"], table["num_workers"]
    bridged = np.char.endswith(folder, "pairwise_nvlink")
    chosen = (devices == table["devices_per_node"]) & np.isin(folder, list(MEASURED))
    chosen &= ~bridged | ((devices > 2) & (kind == "all_reduce"))
    chosen &= np.argsort(np.argsort(table["size"], kind="stable")) % THINNED == 0
    table, folder = select_rows(table, chosen), folder[chosen]
    reduced = table["collective"] == "all_reduce"
    mean = np.where(reduced, table["time_stats.all_reduce.mean"], table["time_stats.send_recv.mean"]).astype(float)
    return _rows(folder, table["collective"], table["num_workers"], table["size"].astype(float), mean / 1e3)


class Fit(NamedTuple):
    """The mean curves (c, 5) of all generations, and those of each."""

    mean: Array
    by_generation: dict[str, Array]

    def predict(self, rows: CollectiveRows, generation: str = "") -> tuple[Array, Array]:
        """Return the seconds of n rows, and the share of latency in each, by the mean or by a generation's curves."""
        theta = self.by_generation.get(generation, self.mean)
        return _predict(theta, rows)

    def spreads(self) -> tuple[Array, int]:
        """Return the deviation of a new generation's latency and efficiency, and its degrees of freedom."""
        shifts = [theta - self.mean for theta in self.by_generation.values()]
        apart = np.array([shift[:, [LATENCY, EFFICIENCY]].mean(0) for shift in shifts])
        count = len(apart)
        freedom = PRIOR_WEIGHT + count - 1
        variance = (PRIOR_WEIGHT * PRIOR**2 + (apart**2).sum(0)) / freedom
        return np.sqrt(variance * (1 + 1 / count)), freedom


def _predict(theta: Array, rows: CollectiveRows) -> tuple[Array, Array]:
    latency, growth, efficiency, spreading, knee = theta[rows.kind].T
    curve = (np.exp(latency), growth, np.exp(efficiency), spreading, np.exp(knee))
    seconds = collective_seconds(curve, rows.work, rows.devices)
    alone = np.exp(latency) * (rows.devices / 2) ** growth
    return seconds, (alone / seconds) ** np.exp(knee)


def fit_curves(rows: CollectiveRows) -> Fit:
    """Return the most likely curves; each generation's are near their common mean."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - needed to fit alone

    names = np.unique(rows.generation).tolist()
    parts = [rows.at(rows.generation == name) for name in names]
    shape = (len(names), len(ORDER), len(STARTS))

    def unpack(flat: Array) -> tuple[Array, Array]:
        mean = flat[: len(ORDER) * len(STARTS)].reshape(shape[1:])
        return mean, flat[len(ORDER) * len(STARTS) :].reshape(shape)

    def residuals(flat: Array) -> Array:
        mean, apart = unpack(flat)
        errors = [np.log(_predict(mean + apart[i], part)[0] / part.seconds) / NOISE for i, part in enumerate(parts)]
        return np.concatenate([*errors, (apart / DEVIATIONS).ravel(), ((mean - STARTS) / (10 * DEVIATIONS)).ravel()])

    start = np.concatenate([np.tile(STARTS, len(ORDER)), np.zeros(np.prod(shape))])
    mean, apart = unpack(least_squares(residuals, start).x)
    return Fit(mean, {name: mean + apart[i] for i, name in enumerate(names)})


class Tables(NamedTuple):
    """The measurements by their part: fitted, of another source, and through slots."""

    fitted: CollectiveRows
    checked: CollectiveRows
    slots: CollectiveRows


def read_tables(data: Path) -> Tables:
    """Return NCCL's curves and Vidur's sends, Vidur's all-reduces, and all that goes through slots."""
    nccl, vidur = nccl_rows(data), vidur_rows(data)
    sends, slot = vidur.kind == ORDER.index(Collective.SEND), vidur.generation == SLOT
    fitted = CollectiveRows.joined(nccl.at(nccl.generation != SLOT), vidur.at(sends & ~slot))
    return Tables(
        fitted, vidur.at(~sends & ~slot), CollectiveRows.joined(nccl.at(nccl.generation == SLOT), vidur.at(slot))
    )


def residual_deviation(rows: CollectiveRows, fit: Fit) -> float:
    """Return the deviation of fitted rows about the curves of their generations."""
    errors = [np.log(part.seconds / fit.predict(part, name)[0]) for name, part in _by_generation(rows)]
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def source_spreads(rows: CollectiveRows, fit: Fit) -> Array:
    """Return the root mean square offset of another source's curves where latency decides, and where bytes do."""
    offsets: tuple[list[float], list[float]] = [], []
    for name, part in _by_generation(rows):
        seconds, share = fit.predict(part, name)
        errors = np.log(part.seconds / seconds)
        for curve in np.unique(part.curves):
            same = part.curves == curve
            for place, bound in enumerate((share > LATENCY_BOUND, share < RATE_BOUND)):
                if (same & bound).any():
                    offsets[place].append(float(errors[same & bound].mean()))
    return np.array([np.sqrt(np.mean(np.square(values))) for values in offsets])


def _by_generation(rows: CollectiveRows) -> list[tuple[str, CollectiveRows]]:
    return [(name, rows.at(rows.generation == name)) for name in np.unique(rows.generation).tolist()]


def fit_slots(rows: CollectiveRows) -> tuple[Fit, float]:
    """Return the curves through slots, and the deviation of whole systems about them.

    Pairs and systems whose cards reach each other are fitted. Between more than two cards of the L40S system, bytes
    pass through the host's memory, 5 to 20 times slower: it widens the interval.
    """
    l40s = rows.device == "l40s"
    # Launches are in Vidur's short times.
    fit = fit_curves(rows.at(np.where(l40s, rows.devices == 2, rows.seconds > SHORTEST_S)))
    seconds, share = fit.predict(rows)
    errors = np.log(rows.seconds / seconds)
    bound = share < RATE_BOUND
    by_system = [np.mean(errors[bound & (rows.device == name)] ** 2) for name in np.unique(rows.device)]
    return fit, float(np.sqrt(np.mean(by_system)))


def _left_out(rows: CollectiveRows, mask: Mask, *, same: bool) -> tuple[Array, Array]:
    """Return the log errors on rows that a fit had not, and whether its 90 % intervals hold each.

    ``same`` is true where the fit has other rows of their generations.
    """
    from scipy.stats import t  # noqa: PLC0415 - needed to fit alone

    learned = rows.at(~mask)
    fit = fit_curves(learned)
    noise, (spreads, freedom) = residual_deviation(learned, fit), fit.spreads()
    errors, holds = np.full((2, int(mask.sum())), np.nan)
    held_out = rows.at(mask)
    for name, part in _by_generation(held_out):
        seconds, share = fit.predict(part, name if same else "")
        error = np.log(part.seconds / seconds)
        half = np.full(len(error), NORMAL_90 * noise)
        if not same:
            spread = np.sqrt((share * spreads[0]) ** 2 + ((1 - share) * spreads[1]) ** 2 + noise**2)
            half = t.ppf(0.95, freedom) * spread
        place = held_out.generation == name
        errors[place], holds[place] = error, np.abs(error) <= half
    return errors, holds


def collective_results(data: Path) -> list[BenchmarkRow]:
    """Return the errors and coverage on generations, devices and numbers of devices left out, and on another source."""
    tables = read_tables(data)
    rows = tables.fitted
    answers: list[BenchmarkRow] = []
    whole: list[tuple[Array, Array, CollectiveRows]] = []
    for name in np.unique(rows.generation).tolist():
        mask = rows.generation == name
        result = (*_left_out(rows, mask, same=False), rows.at(mask))
        whole.append(result)
        answers += _error_rows(f"collectives, {name} from other generations", *result)
    errors, holds = (np.concatenate([result[place] for result in whole]) for place in (0, 1))
    everything = CollectiveRows.joined(*(part for _, _, part in whole))
    answers += _error_rows("collectives, generation left out", errors, holds, everything, target=True)
    splits = {
        "H200 from H100": rows.device == "h200_sxm", "GB200 from B200": rows.device == "gb200",
        "4 GPUs from 2 and 8": rows.devices == 4, "8 GPUs from 2 and 4": rows.devices == 8,
    }  # fmt: skip
    for name, mask in splits.items():
        answers += _error_rows(f"collectives, {name}", *_left_out(rows, mask, same=True), rows.at(mask))
    fit = fit_curves(rows)
    checked = tables.checked
    parts = [(part.seconds, *fit.predict(part, name)) for name, part in _by_generation(checked)]
    errors = np.concatenate([np.log(measured / predicted) for measured, predicted, _ in parts])
    large = np.concatenate([share < RATE_BOUND for *_, share in parts])
    for word, mask in (("large", large), ("small", ~large)):
        error = 100 * float(np.mean(np.abs(np.expm1(-errors[mask]))))
        title = f"collectives, {word} all-reduces of another source: MAPE"
        how = "Vidur's A100 and H100, timed with their launches; no part of the fit"
        answers.append(BenchmarkRow(title, error, "%", n=len(np.unique(checked.curves)), how=how))
    return answers


def _error_rows(
    name: str, errors: Array, holds: Array, rows: CollectiveRows, *, target: bool = False
) -> list[BenchmarkRow]:
    """Return the mean error and the coverage; each curve weighs the same, and n counts curves."""
    curves = np.unique(rows.curves)
    apart = 100 * np.abs(np.expm1(-errors))
    means = ([values[rows.curves == curve].mean() for curve in curves] for values in (apart, 100 * holds))
    error, share = (float(np.mean(values)) for values in means)
    title, count = f"{name}: 90 % intervals that hold", len(curves)
    coverage = (
        within(title, share, (85.0, 95.0), "%", n=count) if target
        else BenchmarkRow(title, share, "%", n=count)
    )  # fmt: skip
    return [BenchmarkRow(f"{name}: MAPE", error, "%", n=count), coverage]


SOURCES = (
    "NCCL 2.27 and 2.29 in 16 bits on A100, L40S, H100, H200, B200 and GB200: ai-dynamo/aiconfigurator 095f58a51",
    "sends, and all-reduces through slots: Vidur, data/profiling/network",
)
LIMITS = (
    "one node or domain of 2, 4 and 8 GPUs; latency beyond 8 is extrapolated",
    "links between nodes were not measured",
    "times on idle links: stragglers and launches are not included",
)


def _link(theta: Array, kinds: Sequence[int], spreads: Array, gb_per_s: float | None = None) -> LinkCurves:
    curves = {}
    for kind in kinds:
        start, growth, efficiency, spreading, knee = theta[kind].tolist()
        numbers = (np.exp(start), growth, np.exp(efficiency), spreading, np.exp(knee))
        curves[ORDER[kind]] = CollectiveCurve(*(float(f"{number:.4g}") for number in numbers))
    latency, rate = (round(spread, 2) for spread in spreads.tolist())
    return LinkCurves(curves, latency, rate, gb_per_s)


def curve_file(tables: Tables, errors: Mapping[str, float]) -> CurveFile:
    """Return the file that the product reads."""
    from scipy.stats import t  # noqa: PLC0415 - needed to fit alone

    rows, fit = tables.fitted, fit_curves(tables.fitted)
    noise, source = residual_deviation(rows, fit), source_spreads(tables.checked, fit)
    within_generation = np.hypot(source, noise)
    spreads, freedom = fit.spreads()
    new_generation = np.hypot(within_generation, spreads * t.ppf(0.95, freedom) / NORMAL_90)
    slots, slot_rate = fit_slots(tables.slots)
    everything = range(len(ORDER))
    links = {OTHER: _link(fit.mean, everything, new_generation)}
    for name, part in _by_generation(rows):
        rate = next(gb_per_s for generation, gb_per_s in MEASURED.values() if generation == name)
        links[name] = _link(fit.by_generation[name], np.unique(part.kind).tolist(), within_generation, rate)
    links[SLOT] = _link(slots.mean, np.unique(tables.slots.kind).tolist(), np.array([new_generation[0], slot_rate]))
    made_on = datetime.now(UTC).date().isoformat()
    return CurveFile(CurveCard(made_on, "Apache-2.0 and MIT", SOURCES, dict(errors), LIMITS), links)


def main(arguments: list[str]) -> int:
    """Fit the curves and write the file; return the exit status."""
    try:
        if len(arguments) != 2:
            raise InvalidInput(f"{len(arguments)} arguments: give a folder of data and a file to write")
        data, path = (Path(argument) for argument in arguments)
        errors = {row.name: round(row.value, 2) for row in collective_results(data) if row.value is not None}
        content = msgspec.json.encode(curve_file(read_tables(data), errors))
        path.write_bytes(msgspec.json.format(content, indent=1) + b"\n")
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
