"""Collectives: all-reduces and sends by message size, number of devices and link (Vidur's profiles, MIT)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.baselines import boosted_rows, nearest_row
from benchmarks.dnn.collective_model import ALL_REDUCE, SEND, Collective, CollectiveTimes, fit_collective_times
from benchmarks.dnn.splits import LEVEL, Array, RefusedSplit, SplitResult, joined_split
from benchmarks.normalized_errors import normalize_errors
from benchmarks.tables import Columns, read_table, select_rows
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.estimators.ports import Predictions

Mask = npt.NDArray[np.bool_]

TABLE = "collectives"
LINKS = {
    "a100_dgx": ("A100 SXM", "A100 SXM4 80GB"),
    "h100_dgx": ("H100 SXM", "H100 SXM5 80GB"),
    "a100_pairwise_nvlink": ("A100 bridged", "A100 PCIe 80GB"),
    "h100_pairwise_nvlink": ("H100 bridged", "H100 PCIe 80GB"),
    "a40_pairwise_nvlink": ("A40 bridged", "A40"),
}
"""Folder of the measurements → name of the link, device of the catalog."""
TWICE = ("a100_pairwise_nvlink", "send_recv")
"""These rows are byte for byte those of the H100 folder, so they count once."""
BANDS = ((2.0**20, "up to 1 MiB"), (2.0**23, "to 8 MiB"), (np.inf, "above 8 MiB"))
LARGER = 8.0
SWEEP = 4
SEED = 0


Texts = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class InnerErrors:
    """Errors ln(measured ÷ predicted) within the learned rows, their spreads, groups and units; shape (m,)."""

    error: Array
    spread: Array
    group: Texts
    unit: Texts


@dataclass(frozen=True, slots=True)
class CollectiveRows:
    """The n measurements, their seconds, and plain features (n, columns) for the baselines."""

    collectives: Sequence[Collective]
    elapsed_s: Array
    features: Array

    def at(self, chosen: Mask) -> "CollectiveRows":
        """Return the rows where ``chosen`` is true."""
        kept = np.flatnonzero(chosen)
        return CollectiveRows([self.collectives[int(i)] for i in kept], self.elapsed_s[chosen], self.features[chosen])

    @property
    def sizes(self) -> Array:
        """Return the sizes of the messages in bytes."""
        return np.array([collective.size_bytes for collective in self.collectives])

    @property
    def bands(self) -> npt.NDArray[np.str_]:
        """Return the band of each message's size."""
        edges = [edge for edge, _ in BANDS]
        return np.array([BANDS[i][1] for i in np.searchsorted(edges, self.sizes)])

    @property
    def inside(self) -> Mask:
        """Return where all devices are in one node."""
        return np.array([collective.layout.inside for collective in self.collectives])

    @property
    def layouts(self) -> npt.NDArray[np.str_]:
        """Return the layout of each row as a text."""
        return np.array([str(collective.layout) for collective in self.collectives])


def splits(data: Path, *, quick: bool) -> list[SplitResult | RefusedSplit]:
    """Return the splits of the table; ``quick`` keeps every fourth size."""
    table = _rows(read_table(data, "vidur_collectives"))
    if quick:
        table = table.at(np.isin(table.sizes, np.unique(table.sizes)[::4]))
    return [_unseen_sizes(table), _sweep(table), *_larger(table), *_other_counts(table), _refused(table)]


def _rows(columns: Columns) -> CollectiveRows:
    """Return the measurements, in seconds, without the duplicated ones."""
    folder = np.array([path.split("/")[-2] for path in columns["path"]])
    columns = select_rows(columns, ~((folder == TWICE[0]) & (columns["collective"] == TWICE[1])))
    folder = np.array([path.split("/")[-2] for path in columns["path"]])
    reduced = columns["collective"] == "all_reduce"
    milliseconds = np.where(
        reduced, columns["time_stats.all_reduce.mean"], columns["time_stats.send_recv.mean"]
    ).astype(float)
    catalog = TomlCatalog()
    wires = {name: (catalog.device(device).link_bytes_per_s or np.nan) / 2 for name, (_, device) in LINKS.items()}
    collectives = []
    for i, name in enumerate(folder):
        devices, per_node = int(columns["num_workers"][i]), int(columns["devices_per_node"][i])
        through_slot = name.endswith("pairwise_nvlink") and devices > 2
        direct = devices == per_node and not through_slot
        link = f"{LINKS[name][0]}, through the slots" if through_slot else LINKS[name][0]
        kind = ALL_REDUCE if reduced[i] else SEND
        size = float(columns["size"][i])
        collectives.append(Collective(kind, link, devices, per_node, size, wires[name] if direct else None))
    codes = {name: i for i, name in enumerate(LINKS)}
    features = np.column_stack(
        [np.log(columns["size"]), np.log2(columns["num_workers"]), np.log2(columns["devices_per_node"]),
         reduced, [codes[name] for name in folder]]
    ).astype(float)  # fmt: skip
    return CollectiveRows(collectives, milliseconds / 1e3, features)


def _unseen_sizes(table: CollectiveRows) -> SplitResult:
    """Hold out a fifth of the sizes on all links."""
    sizes = np.unique(table.sizes)
    folds = np.random.default_rng(SEED).integers(0, 5, len(sizes))[np.searchsorted(sizes, table.sizes)]
    learned, held_out = table.at(folds != 0), table.at(folds == 0)
    inner = folds[folds != 0]
    errors = []
    for fold in (1, 2, 3, 4):
        within, out = learned.at(inner != fold), learned.at(inner == fold)
        errors.append(_inner(out, _times(within), out.bands))
    return _split(
        "unseen sizes", learned, held_out, errors, held_out.bands, 4.5, "four fifths of the sizes of every layout"
    )


def _sweep(table: CollectiveRows) -> SplitResult:
    """Train on a sweep of few sizes an octave of each layout; test on all other sizes."""
    _, first = np.unique(
        [
            f"{layout} {place}"
            for layout, place in zip(table.layouts, np.floor(SWEEP * np.log2(table.sizes)), strict=True)
        ],
        return_index=True,
    )
    swept = np.zeros(len(table.elapsed_s), bool)
    swept[first] = True
    learned, held_out = table.at(swept), table.at(~swept)
    folds = np.arange(len(learned.elapsed_s)) % 2
    errors = []
    for fold in (0, 1):
        out = learned.at(folds == fold)
        errors.append(_inner(out, _times(learned.at(folds != fold)), out.bands))
    how = f"{SWEEP} sizes an octave of every layout; intervals from every other one of these"
    return _split("unseen sizes from a short sweep", learned, held_out, errors, held_out.bands, None, how)


def _larger(table: CollectiveRows) -> list[SplitResult]:
    """Hold out messages more than eight times larger than the training data of their layout."""
    learned, held_out = table.at(_small(table, LARGER)), table.at(~_small(table, LARGER))
    errors, final = [], _times(learned)
    for times in (2.0, 4.0, LARGER):
        small = _small(learned, times)
        out = learned.at(~small)
        short = replace(_times(learned.at(small)), inside=final.inside, between=final.between)
        errors.append(_inner(out, short, _where(out), out.layouts.tolist()))
    how = "an eighth of each layout's sizes; intervals from extrapolating two to eight times within these"
    whole = _split(
        "8 times larger", learned, held_out, errors, _where(held_out), 9.0, how,
        "changes of NCCL's algorithm above what was learned, between nodes: 16 devices get faster, 4 slower",
    )  # fmt: skip
    inside = _split(
        "8 times larger, in a node",
        learned,
        held_out.at(held_out.inside),
        errors,
        _where(held_out)[held_out.inside],
        None,
        how,
    )
    return [whole, inside]


def _other_counts(table: CollectiveRows) -> list[SplitResult]:
    """Hold out each number of devices of the nodes where three were measured."""
    counted = np.array([collective.link in ("A100 SXM", "H100 SXM") for collective in table.collectives])
    node = table.at(counted & table.inside)
    node = node.at(np.array([collective.kind == ALL_REDUCE for collective in node.collectives]))
    parts = []
    for link in ("A100 SXM", "H100 SXM"):
        for devices in (2, 4, 8):
            mask = np.array([(row.link, row.devices) == (link, devices) for row in node.collectives])
            learned, held_out = node.at(~mask), node.at(mask)
            inner = _inner_counts(learned, link)
            parts.append(_split(f"{link} {devices}", learned, held_out, inner, _where(held_out), None, ""))
    how = "the other numbers of devices in the node, and the other kind of node; each of 2, 4 and 8 held out in turn"
    limits = "messages below 1 MiB whose times jump between two values: 2 devices of an H100 node scatter by 10 %"
    return [joined_split(TABLE, "other numbers of devices in a node", parts, mape=9.0, how=how, limits=limits)]


def _inner_counts(learned: CollectiveRows, link: str) -> list[InnerErrors]:
    """Return the errors on the other kind of node, with each number of devices held out."""
    errors = []
    for count in (2, 4, 8):
        out = np.array([row.link != link and row.devices == count for row in learned.collectives])
        errors.append(_inner(learned.at(out), _times(learned.at(~out)), _where(learned.at(out))))
    return errors


def _refused(table: CollectiveRows) -> RefusedSplit:
    """Hold out each layout of several nodes and each link that no other layout informs."""
    refused, wrong, total = 0, [], 0
    counted = {"A100 SXM", "H100 SXM"}
    for layout in sorted({row.layout for row in table.collectives}):
        if layout.inside and layout.kind == ALL_REDUCE and layout.link in counted:
            continue
        mask = np.array([row.layout == layout for row in table.collectives])
        learned, held_out = table.at(~mask), table.at(mask)
        times, total = _times(learned), total + 1
        try:
            times.predict(held_out.collectives)
        except InvalidInput:
            refused += 1
        guess = nearest_row(learned.features, learned.elapsed_s, held_out.features)
        wrong.append(100 * np.abs(guess - held_out.elapsed_s) / held_out.elapsed_s)
    every = float(np.mean(np.concatenate(wrong)))
    by_layout = np.array([part.mean() for part in wrong])
    how = (
        f"the nearest measured layout would have been wrong by {every:.0f} % "
        f"({by_layout.min():.0f} to {by_layout.max():.0f} % by layout)"
    )
    return RefusedSplit(TABLE, "other links and layouts", refused, total, every, how)


def _split(
    split: str,
    learned: CollectiveRows,
    held_out: CollectiveRows,
    inner: Sequence[InnerErrors],
    group: npt.NDArray[np.str_],
    mape: float | None,
    how: str,
    limits: str = "",
) -> SplitResult:
    """Return the predictions of the held-out rows; intervals come from the inner errors, by ``group``.

    Rows of one curve in a group have correlated errors.
    """
    predicted = _times(learned).predict(held_out.collectives)
    low, high = _bounds(inner, predicted, group)
    answers = {
        "Leadline": predicted.point,
        "one α–β": _alpha_beta(learned, held_out),
        "nearest neighbour": nearest_row(learned.features, learned.elapsed_s, held_out.features),
        "boosting": boosted_rows(learned.features, learned.elapsed_s, held_out.features),
    }
    return SplitResult(
        TABLE, split, held_out.elapsed_s, answers, low, high, group, mape=mape, how=how, limits=limits,
        unit=held_out.layouts,
    )  # fmt: skip


def _bounds(inner: Sequence[InnerErrors], predicted: Predictions, group: Texts) -> tuple[Array, Array]:
    """Return the ends of 90 % intervals: the predicted spread times the normalized inner errors of the group."""
    low, high = np.empty(len(group)), np.empty(len(group))
    error, spread, groups = (
        np.concatenate([getattr(part, name) for part in inner]) for name in ("error", "spread", "group")
    )
    units = np.concatenate([np.char.add(f"{number} ", part.unit) for number, part in enumerate(inner)])
    for name in np.unique(group):
        mask, alike = group == name, groups == name
        scores = normalize_errors(error[alike], spread[alike], units[alike].tolist())
        low[mask], high[mask] = scores.interval(predicted.point[mask], predicted.spread[mask], LEVEL)
    return low, high


def _times(learned: CollectiveRows) -> CollectiveTimes:
    return fit_collective_times(learned.collectives, list(learned.elapsed_s))


def _inner(out: CollectiveRows, times: CollectiveTimes, group: Texts, unit: Sequence[str] | None = None) -> InnerErrors:
    """Return the errors of ``out``; all units weigh the same, by default each row is one."""
    predicted = times.predict(out.collectives)
    units = np.arange(len(group)).astype(str) if unit is None else np.array(unit)
    return InnerErrors(np.log(out.elapsed_s / predicted.point), predicted.spread, group, units)


def _small(table: CollectiveRows, times: float) -> Mask:
    """Return where a message is no larger than the largest of its layout ÷ ``times``."""
    largest = {name: table.sizes[table.layouts == name].max() for name in np.unique(table.layouts)}
    return np.asarray(table.sizes <= np.array([largest[name] for name in table.layouts]) / times)


def _where(table: CollectiveRows) -> npt.NDArray[np.str_]:
    return np.where(table.inside, "in a node", "between nodes")


def _alpha_beta(learned: CollectiveRows, held_out: CollectiveRows) -> Array:
    """Return a start-up and a bandwidth for each kind of collective, by least squares on relative errors."""
    predicted = np.empty(len(held_out.elapsed_s))
    for reduced in (0.0, 1.0):
        learned_kind, ask = learned.features[:, 3] == reduced, held_out.features[:, 3] == reduced
        if not learned_kind.any():
            predicted[ask] = np.nan
            continue
        design = np.column_stack([np.ones(learned_kind.sum()), learned.sizes[learned_kind]])
        weighted = design / learned.elapsed_s[learned_kind][:, None]
        start_s, slope = np.linalg.lstsq(weighted, np.ones(len(weighted)), rcond=None)[0]
        predicted[ask] = np.maximum(start_s + slope * held_out.sizes[ask], 1e-7)
    return predicted
