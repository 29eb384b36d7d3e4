"""Times of collectives fitted to a sweep of message sizes: one curve for each link and layout.

Between measured sizes the model follows the curve. For larger messages and other numbers of devices in a node it
extrapolates. It refuses another link, or another layout over several nodes: such guesses were wrong by 40 to 160 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

import numpy as np

from benchmarks.dnn.collective_curves import CollectiveCurve, SpreadGrowth, fit_curve, fit_spread_growth, make_curve
from leadline.core.errors import InvalidInput
from leadline.estimators.ports import Array, Predictions, State, floats, strings, text_array

ALL_REDUCE, SEND = "all-reduce", "send"
# Numbers of devices that must have been measured in a node before another number is answered.
LEAST_COUNTS = 2


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective among ``devices``, ``per_node`` of them on each node, over ``link``.

    ``link`` names what joins them, whatever words are used (``A100 SXM``); ``wire_bytes_per_s`` is what its maker says
    a device sends over it, one way, ``None`` where that is not known.
    """

    kind: str
    link: str
    devices: int
    per_node: int
    size_bytes: float
    wire_bytes_per_s: float | None = None

    @property
    def layout(self) -> "CollectiveLayout":
        """The link and layout, whose curve answers."""
        return CollectiveLayout(self.kind, self.link, self.devices, self.per_node)


@dataclass(frozen=True, slots=True, order=True)
class CollectiveLayout:
    """Participants of a collective, and the link between them."""

    kind: str
    link: str
    devices: int
    per_node: int

    @property
    def inside(self) -> bool:
        """True if all devices are in one node."""
        return self.devices == self.per_node

    @property
    def passes(self) -> float:
        """How often the data passes a device's link: 2(n−1)/n in a ring's all-reduce, once in a send."""
        return 2 * (self.devices - 1) / self.devices if self.kind == ALL_REDUCE else 1.0


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """Curves of all measured layouts, with the growth of their spread ``inside`` and ``between`` nodes."""

    curves: Mapping[CollectiveLayout, CollectiveCurve]
    inside: SpreadGrowth = field(default_factory=SpreadGrowth)
    between: SpreadGrowth = field(default_factory=SpreadGrowth)

    def predict(self, collectives: Sequence[Collective]) -> Predictions:
        """Return the seconds of each collective; ``extrapolation`` is the distance of its size to the curve.

        The spread is that of single times around the curve. Past the curve it grows by the errors of shortened curves.
        For an unmeasured layout the disagreement of the extrapolation rules is added.

        Raises:
            InvalidInput: a link or layout was not measured and cannot be extrapolated.
        """
        point, spread, beyond = (np.empty(len(collectives)) for _ in range(3))
        rows: dict[CollectiveLayout, list[int]] = {}
        for row, collective in enumerate(collectives):
            rows.setdefault(collective.layout, []).append(row)
        for layout, chosen in rows.items():
            sizes = np.log([max(collectives[row].size_bytes, 1.0) for row in chosen])
            log_s, spread[chosen] = self._log_s(layout, sizes)
            point[chosen] = np.exp(log_s)
            beyond[chosen] = self._outside(layout, sizes)
        return Predictions(point, spread, beyond)

    def dump(self) -> State:
        """Return all curves as arrays."""
        layouts = list(self.curves)
        curves = list(self.curves.values())
        return {
            "kinds": text_array([entry.kind for entry in layouts]),
            "links": text_array([entry.link for entry in layouts]),
            "counts": np.array([[entry.devices, entry.per_node] for entry in layouts], float).reshape(-1, 2),
            "wires": np.array([entry.wire_bytes_per_s for entry in curves]),
            "growth": np.array([astuple(entry) for entry in (self.inside, self.between)]),
            "lengths": np.array([len(entry.sizes) for entry in curves], float),
            "sizes": np.concatenate([np.empty(0), *(entry.sizes for entry in curves)]),
            "seconds": np.concatenate([np.empty(0), *(entry.seconds for entry in curves)]),
        }

    def _log_s(self, layout: CollectiveLayout, sizes: Array) -> tuple[Array, Array]:
        """Return the logarithm of seconds, and its deviation."""
        if layout in self.curves:
            curve, growth = self.curves[layout], self.inside if layout.inside else self.between
            return curve.at(sizes, layout.passes), curve.spread(sizes, growth)
        measured = self._counts(layout)
        if len(measured) < LEAST_COUNTS:
            raise InvalidInput(
                f"no {layout.kind} of {layout.devices} devices, {layout.per_node} on each node, was measured over "
                f"{layout.link}, and other links and layouts cannot predict it: measure a few sizes there first"
            )
        laws = self._extrapolate_count(layout, measured, sizes)
        means = [np.mean(laws, axis=0)]
        if (alike := self._scale_like_other_link(layout, measured, sizes)) is not None:
            laws, means = [*laws, alike], [*means, alike]
        single = np.mean([self.curves[count_layout].spread(sizes, self.inside) for count_layout in measured], axis=0)
        return np.mean(means, axis=0), np.hypot(np.std(laws, axis=0), single)

    def _counts(self, layout: CollectiveLayout) -> list[CollectiveLayout]:
        """Return the measured layouts that differ only in how many devices of one node take part."""
        if not layout.inside:
            return []
        return sorted(
            candidate
            for candidate in self.curves
            if candidate.inside and (candidate.kind, candidate.link) == (layout.kind, layout.link)
        )

    def _extrapolate_count(
        self, layout: CollectiveLayout, measured: list[CollectiveLayout], sizes: Array
    ) -> list[Array]:
        """Return log seconds at each size by three rules in the number of devices n.

        Time is a power of n, or proportional to the bytes that pass each link, or a constant plus such a part.
        """
        times = {
            count_layout: self.curves[count_layout].smooth(sizes, count_layout.passes) for count_layout in measured
        }
        first, second = sorted(
            sorted(measured, key=lambda count_layout: abs(math.log(count_layout.devices / layout.devices)))[:2]
        )
        steep = (times[second] - times[first]) / math.log(second.devices / first.devices)
        power = times[first] + steep * math.log(layout.devices / first.devices)
        between = first.devices < layout.devices < second.devices
        near = min(measured, key=lambda count_layout: abs(math.log(count_layout.devices / layout.devices)))
        alike = [
            times[count_layout] + math.log(layout.passes / count_layout.passes)
            for count_layout in ((first, second) if between else (near,))
        ]
        low, high = np.exp(times[first]), np.exp(times[second])
        most = np.minimum(low / first.passes, high / second.passes)
        share = np.clip((high - low) / (second.passes - first.passes), 0.0, most)
        start = (low + high - share * (first.passes + second.passes)) / 2
        return [power, np.mean(alike, axis=0), np.log(start + share * layout.passes)]

    def _scale_like_other_link(
        self, layout: CollectiveLayout, measured: list[CollectiveLayout], sizes: Array
    ) -> Array | None:
        """Return log seconds that change with the device count as they do over another link."""
        estimates = []
        for link in sorted({count_layout.link for count_layout in self.curves} - {layout.link}):
            by_count = {
                count_layout.devices: count_layout
                for count_layout in self.curves
                if count_layout.inside and (count_layout.kind, count_layout.link) == (layout.kind, link)
            }
            if not {layout.devices, *(count_layout.devices for count_layout in measured)} <= set(by_count):
                continue
            target_log_s = self.curves[by_count[layout.devices]].smooth(sizes, layout.passes)
            for count_layout in measured:
                change = target_log_s - self.curves[by_count[count_layout.devices]].smooth(sizes, count_layout.passes)
                estimates.append(self.curves[count_layout].smooth(sizes, count_layout.passes) + change)
        return np.asarray(np.mean(estimates, axis=0), np.float64) if estimates else None

    def _outside(self, layout: CollectiveLayout, sizes: Array) -> Array:
        curves = [self.curves[curve] for curve in ([layout] if layout in self.curves else self._counts(layout))]
        low, high = max(curve.sizes[0] for curve in curves), min(curve.sizes[-1] for curve in curves)
        excess = np.maximum(np.maximum(sizes - high, low - sizes), 0.0) / max(high - low, 1.0)
        return np.asarray(excess if layout in self.curves else np.maximum(excess, 1.0), np.float64)


def fit_collective_times(measured: Sequence[Collective], elapsed_s: Sequence[float]) -> CollectiveTimes:
    """Learn the curve of each layout from n collectives and their seconds.

    Raises:
        InvalidInput: a size or a time is not above zero.
    """
    rows: dict[CollectiveLayout, list[int]] = {}
    for row, (collective, seconds) in enumerate(zip(measured, elapsed_s, strict=True)):
        if not (collective.size_bytes > 0 and seconds > 0):
            raise InvalidInput(
                f"a collective of {collective.size_bytes:g} bytes took {seconds:g} s: leave out what is not above zero"
            )
        rows.setdefault(collective.layout, []).append(row)
    times = np.asarray(elapsed_s, np.float64)
    curves = {}
    for layout, chosen in sorted(rows.items()):
        wire = measured[chosen[0]].wire_bytes_per_s
        sizes = np.log2([measured[row].size_bytes for row in chosen])
        curves[layout] = fit_curve(sizes, np.log(times[chosen]), math.nan if wire is None else wire)
    return CollectiveTimes(curves, *(_growth(curves, inside=inside) for inside in (True, False)))


def load_collective_times(state: State) -> CollectiveTimes:
    """Return the times that ``dump`` gave."""
    ends = np.cumsum(floats(state["lengths"])).astype(int)
    kinds, links, counts = strings(state["kinds"]), strings(state["links"]), floats(state["counts"]).astype(int)
    sizes, seconds = (np.split(floats(state[name]), ends[:-1]) for name in ("sizes", "seconds"))
    return CollectiveTimes(
        {
            CollectiveLayout(kinds[i], links[i], *(int(number) for number in counts[i])): make_curve(
                sizes[i], seconds[i], wire
            )
            for i, wire in enumerate(floats(state["wires"]).tolist())
        },
        *(SpreadGrowth(*number) for number in floats(state["growth"]).tolist()),
    )


def _growth(curves: Mapping[CollectiveLayout, CollectiveCurve], *, inside: bool) -> SpreadGrowth:
    return fit_spread_growth((curve, layout.passes) for layout, curve in curves.items() if layout.inside is inside)
