"""Collectives: all-reduces and sends by message size, number of devices and link (Vidur's profiles, MIT)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.baselines import boosted_rows, nearest_row
from benchmarks.dnn.splits import LEVEL, Array, RefusedSplit, SplitResult, joined_split
from benchmarks.dnn.tables import Columns, read_table, select_rows
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.estimators.collectives import ALL_REDUCE, SEND, Collective, CollectiveTimes, fit_collective_times
from leadline.estimators.ports import Predictions
from leadline.uncertainty.normalized_scores import NormalizedScores

Mask = npt.NDArray[np.bool_]

TABLE = "collectives"
LINKS = {
    "a100_dgx": ("A100 SXM", "A100 SXM4 80GB"),
    "h100_dgx": ("H100 SXM", "H100 SXM5 80GB"),
    "a100_pairwise_nvlink": ("A100 bridged", "A100 PCIe 80GB"),
    "h100_pairwise_nvlink": ("H100 bridged", "H100 PCIe 80GB"),
    "a40_pairwise_nvlink": ("A40 bridged", "A40"),
}
"""Folder of the measurements → what the link is called, and the device of the catalog."""
TWICE = ("a100_pairwise_nvlink", "send_recv")
"""These rows are byte for byte those of the H100 folder: one of them was copied there, so they count once."""
BANDS = ((2.0**20, "up to 1 MiB"), (2.0**23, "to 8 MiB"), (np.inf, "above 8 MiB"))
LARGER = 8.0
SWEEP = 4
SEED = 0


Texts = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class InnerErrors:
    """Errors ln(measured ÷ predicted) within the learned rows, their doubts, groups and units, each of shape (m,)."""

    error: Array
    doubt: Array
    group: Texts
    unit: Texts


@dataclass(frozen=True, slots=True)
class CollectiveRows:
    """The n measurements as nouns, their seconds, and plain features (n, columns) for the methods beside."""

    collectives: Sequence[Collective]
    elapsed_s: Array
    features: Array

    def at(self, chosen: Mask) -> "CollectiveRows":
        """Return the rows where ``chosen`` is true."""
        kept = np.flatnonzero(chosen)
        return CollectiveRows([self.collectives[int(i)] for i in kept], self.elapsed_s[chosen], self.features[chosen])

    @property
    def sizes(self) -> Array:
        """The sizes of the messages in bytes."""
        return np.array([one.size_bytes for one in self.collectives])

    @property
    def bands(self) -> npt.NDArray[np.str_]:
        """In which band of sizes each message is."""
        edges = [edge for edge, _ in BANDS]
        return np.array([BANDS[i][1] for i in np.searchsorted(edges, self.sizes)])

    @property
    def inside(self) -> Mask:
        """Where all devices are in one node."""
        return np.array([one.layout.inside for one in self.collectives])

    @property
    def layouts(self) -> npt.NDArray[np.str_]:
        """The layout of each row as a text."""
        return np.array([str(one.layout) for one in self.collectives])


def splits(data: Path, *, quick: bool) -> list[SplitResult | RefusedSplit]:
    """Return the splits of the table; ``quick`` keeps every fourth size."""
    table = _rows(read_table(data, "vidur_collectives"))
    if quick:
        table = table.at(np.isin(table.sizes, np.unique(table.sizes)[::4]))
    return [_unseen_sizes(table), _sweep(table), *_larger(table), *_other_counts(table), _refused(table)]


def _rows(columns: Columns) -> CollectiveRows:
    """Return the measurements, in seconds, without those that stand there twice."""
    folder = np.array([path.split("/")[-2] for path in columns["path"]])
    columns = select_rows(columns, ~((folder == TWICE[0]) & (columns["collective"] == TWICE[1])))
    folder = np.array([path.split("/")[-2] for path in columns["path"]])
    reduced = columns["collective"] == "all_reduce"
    milliseconds = np.where(
        reduced, columns["time_stats.all_reduce.mean"], columns["time_stats.send_recv.mean"]
    ).astype(float)
    catalog = TomlCatalog()
    wires = {name: (catalog.device(device).link_bytes_per_s or np.nan) / 2 for name, (_, device) in LINKS.items()}
    found = []
    for i, name in enumerate(folder):
        devices, per_node = int(columns["num_workers"][i]), int(columns["devices_per_node"][i])
        through_slot = name.endswith("pairwise_nvlink") and devices > 2
        direct = devices == per_node and not through_slot
        link = f"{LINKS[name][0]}, through the slots" if through_slot else LINKS[name][0]
        kind = ALL_REDUCE if reduced[i] else SEND
        size = float(columns["size"][i])
        found.append(Collective(kind, link, devices, per_node, size, wires[name] if direct else None))
    codes = {name: i for i, name in enumerate(LINKS)}
    features = np.column_stack(
        [np.log(columns["size"]), np.log2(columns["num_workers"]), np.log2(columns["devices_per_node"]),
         reduced, [codes[name] for name in folder]]
    ).astype(float)  # fmt: skip
    return CollectiveRows(found, milliseconds / 1e3, features)


def _unseen_sizes(table: CollectiveRows) -> SplitResult:
    """Hold out a fifth of the sizes, whatever the link."""
    sizes = np.unique(table.sizes)
    folds = np.random.default_rng(SEED).integers(0, 5, len(sizes))[np.searchsorted(sizes, table.sizes)]
    learned, held = table.at(folds != 0), table.at(folds == 0)
    inner = folds[folds != 0]
    tried = []
    for fold in (1, 2, 3, 4):
        within, out = learned.at(inner != fold), learned.at(inner == fold)
        tried.append(_tried(out, _times(within), out.bands))
    return _asked("unseen sizes", learned, held, tried, held.bands, 4.5, "four fifths of the sizes of every layout")


def _sweep(table: CollectiveRows) -> SplitResult:
    """Learn a sweep of few sizes an octave of each layout, as one would measure it, and ask all other sizes."""
    _, first = np.unique(
        [
            f"{layout} {place}"
            for layout, place in zip(table.layouts, np.floor(SWEEP * np.log2(table.sizes)), strict=True)
        ],
        return_index=True,
    )
    swept = np.zeros(len(table.elapsed_s), bool)
    swept[first] = True
    learned, held = table.at(swept), table.at(~swept)
    folds = np.arange(len(learned.elapsed_s)) % 2
    tried = []
    for fold in (0, 1):
        out = learned.at(folds == fold)
        tried.append(_tried(out, _times(learned.at(folds != fold)), out.bands))
    how = f"{SWEEP} sizes an octave of every layout; intervals from every other one of these"
    return _asked("unseen sizes from a short sweep", learned, held, tried, held.bands, None, how)


def _larger(table: CollectiveRows) -> list[SplitResult]:
    """Hold out what is more than eight times larger than anything learned of its layout."""
    learned, held = table.at(_small(table, LARGER)), table.at(~_small(table, LARGER))
    tried, final = [], _times(learned)
    for times in (2.0, 4.0, LARGER):
        small = _small(learned, times)
        out = learned.at(~small)
        short = replace(_times(learned.at(small)), inside=final.inside, between=final.between)
        tried.append(_tried(out, short, _where(out), out.layouts.tolist()))
    how = "an eighth of each layout's sizes; intervals from extrapolating two to eight times within these"
    whole = _asked(
        "8 times larger", learned, held, tried, _where(held), 9.0, how,
        "changes of NCCL's algorithm above what was learned, between nodes: 16 devices get faster, 4 slower",
    )  # fmt: skip
    inside = _asked(
        "8 times larger, in a node", learned, held.at(held.inside), tried, _where(held)[held.inside], None, how
    )
    return [whole, inside]


def _other_counts(table: CollectiveRows) -> list[SplitResult]:
    """Hold out each number of devices of the nodes where three were measured."""
    node = table.at(np.array([one.link in ("A100 SXM", "H100 SXM") for one in table.collectives]) & table.inside)
    node = node.at(np.array([one.kind == ALL_REDUCE for one in node.collectives]))
    parts = []
    for link in ("A100 SXM", "H100 SXM"):
        for devices in (2, 4, 8):
            own = np.array([(one.link, one.devices) == (link, devices) for one in node.collectives])
            tried = _tried_counts(node.at(~own), link)
            part = _asked(f"{link} {devices}", node.at(~own), node.at(own), tried, _where(node.at(own)), None, "")
            parts.append(part)
    how = "the other numbers of devices in the node, and the other kind of node; each of 2, 4 and 8 held out in turn"
    limits = "messages below 1 MiB whose times jump between two values: 2 devices of an H100 node scatter by 10 %"
    return [joined_split(TABLE, "other numbers of devices in a node", parts, mape=9.0, how=how, limits=limits)]


def _tried_counts(learned: CollectiveRows, link: str) -> list[InnerErrors]:
    """Return the errors of the same question asked of the other kind of node, without its own answer."""
    tried = []
    for count in (2, 4, 8):
        out = np.array([one.link != link and one.devices == count for one in learned.collectives])
        tried.append(_tried(learned.at(out), _times(learned.at(~out)), _where(learned.at(out))))
    return tried


def _refused(table: CollectiveRows) -> RefusedSplit:
    """Hold out each layout of several nodes and each link that no other layout can tell of."""
    refused, wrong, total = 0, [], 0
    counted = {"A100 SXM", "H100 SXM"}
    for layout in sorted({one.layout for one in table.collectives}):
        if layout.inside and layout.kind == ALL_REDUCE and layout.link in counted:
            continue
        own = np.array([one.layout == layout for one in table.collectives])
        learned, held = table.at(~own), table.at(own)
        times, total = _times(learned), total + 1
        try:
            times.predict(held.collectives)
        except InvalidInput:
            refused += 1
        guess = nearest_row(learned.features, learned.elapsed_s, held.features)
        wrong.append(100 * np.abs(guess - held.elapsed_s) / held.elapsed_s)
    every = float(np.mean(np.concatenate(wrong)))
    by_layout = np.array([part.mean() for part in wrong])
    how = (
        f"the nearest measured layout would have been wrong by {every:.0f} % "
        f"({by_layout.min():.0f} to {by_layout.max():.0f} % by layout)"
    )
    return RefusedSplit(TABLE, "other links and layouts", refused, total, every, how)


def _asked(
    split: str,
    learned: CollectiveRows,
    held: CollectiveRows,
    tried: Sequence[InnerErrors],
    group: npt.NDArray[np.str_],
    mape: float | None,
    how: str,
    limits: str = "",
) -> SplitResult:
    """Return the answers to ``held``; intervals are those of the errors that were tried, by ``group``.

    Rows of one curve in a group hit or miss together.
    """
    told = _times(learned).predict(held.collectives)
    low, high = _bounds(tried, told, group)
    answers = {
        "Leadline": told.point,
        "one α–β": _alpha_beta(learned, held),
        "nearest neighbour": nearest_row(learned.features, learned.elapsed_s, held.features),
        "boosting": boosted_rows(learned.features, learned.elapsed_s, held.features),
    }
    return SplitResult(
        TABLE, split, held.elapsed_s, answers, low, high, group, mape=mape, how=how, limits=limits,
        unit=held.layouts,
    )  # fmt: skip


def _bounds(tried: Sequence[InnerErrors], told: Predictions, group: Texts) -> tuple[Array, Array]:
    """Return the ends of 90 % intervals: the estimator's doubt times what errors of the group were in terms of it."""
    low, high = np.empty(len(group)), np.empty(len(group))
    error, doubt, groups = (
        np.concatenate([getattr(one, name) for one in tried]) for name in ("error", "doubt", "group")
    )
    units = np.concatenate([np.char.add(f"{number} ", one.unit) for number, one in enumerate(tried)])
    for name in np.unique(group):
        own, alike = group == name, groups == name
        scores = NormalizedScores.of(error[alike], doubt[alike], units[alike].tolist())
        low[own], high[own] = scores.interval(told.point[own], told.spread[own], LEVEL)
    return low, high


def _times(learned: CollectiveRows) -> CollectiveTimes:
    return fit_collective_times(learned.collectives, list(learned.elapsed_s))


def _tried(out: CollectiveRows, times: CollectiveTimes, group: Texts, unit: Sequence[str] | None = None) -> InnerErrors:
    """Return the errors of ``out``; each ``unit`` weighs as much as another, by default each row for itself."""
    told = times.predict(out.collectives)
    units = np.arange(len(group)).astype(str) if unit is None else np.array(unit)
    return InnerErrors(np.log(out.elapsed_s / told.point), told.spread, group, units)


def _small(table: CollectiveRows, times: float) -> Mask:
    """Return where a message is no larger than the largest of its layout ÷ ``times``."""
    largest = {name: table.sizes[table.layouts == name].max() for name in np.unique(table.layouts)}
    return np.asarray(table.sizes <= np.array([largest[name] for name in table.layouts]) / times)


def _where(table: CollectiveRows) -> npt.NDArray[np.str_]:
    return np.where(table.inside, "in a node", "between nodes")


def _alpha_beta(learned: CollectiveRows, held: CollectiveRows) -> Array:
    """Return a start-up and a bandwidth for each kind of collective, by least squares on relative errors."""
    found = np.empty(len(held.elapsed_s))
    for reduced in (0.0, 1.0):
        own, ask = learned.features[:, 3] == reduced, held.features[:, 3] == reduced
        if not own.any():
            found[ask] = np.nan
            continue
        design = np.column_stack([np.ones(own.sum()), learned.sizes[own]])
        weighted = design / learned.elapsed_s[own][:, None]
        start_s, slope = np.linalg.lstsq(weighted, np.ones(len(weighted)), rcond=None)[0]
        found[ask] = np.maximum(start_s + slope * held.sizes[ask], 1e-7)
    return found
