"""Copies over simulated links that flows share: a fluid model with max-min rates and changing cross traffic."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from leadline.core.units import KIB, MIB
from leadline.estimators.file_transfer import MeasuredCopy, PathProbe

PROBE_BYTES = 512 * KIB
SEGMENT_BYTES, FIRST_WINDOW = 1448, 10
"""Payload of a TCP segment, and the segments of the first window (RFC 6928)."""
UNFAIRNESS = 0.15
"""Standard deviation of the logarithm of a flow's weight: TCP shares a link only roughly."""
CROSS_FLOWS = 3


@dataclass(frozen=True, slots=True)
class TimedCopy:
    """One copy, with its start and end in seconds on the clock of the path."""

    started_s: float
    ended_s: float
    copy: MeasuredCopy


@dataclass(frozen=True, slots=True)
class SharedPath:
    """A path over an access link and a wide-area link, which cross traffic shares.

    Attributes:
        capacity_bytes_per_s: Of the wide-area link; the access link is ``access`` times as fast.
        round_trip_s: Of the empty path.
        flows: Copies that compete, each followed by a pause and the next one.
        sizes: Smallest and largest copy in bytes, uniform on logarithms.
        level_s: Mean time between changes of the cross traffic.
        most_cross: The largest level of the cross traffic, as a share of the capacity.
    """

    capacity_bytes_per_s: float = 12.5e6
    access: float = 1.2
    round_trip_s: float = 0.03
    flows: int = 4
    sizes: tuple[float, float] = (4 * MIB, 128 * MIB)
    pause_s: float = 4.0
    level_s: float = 40.0
    most_cross: float = 0.8


def max_min_rates(
    links: Sequence[Sequence[str]],
    capacity: Mapping[str, float],
    *,
    demands: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
) -> list[float]:
    """Return the weighted max-min fair rate of each flow by progressive filling (Bertsekas and Gallager, 6.5.2).

    Args:
        links: The links that each flow crosses.
        capacity: Link -> capacity in bytes/s.
        demands: The most that each flow sends; unlimited by default.
        weights: Rates grow in proportion to them; equal by default.
    """
    count = len(links)
    limit = list(demands) if demands is not None else [math.inf] * count
    weight = list(weights) if weights is not None else [1.0] * count
    rates, left, growing = [0.0] * count, dict(capacity), set(range(count))
    while growing:
        load = {link: sum(weight[flow] for flow in growing if link in links[flow]) for link in left}
        step = min(
            *(left[link] / load[link] for link in left if load[link] > 0),
            *((limit[flow] - rates[flow]) / weight[flow] for flow in growing),
        )
        for flow in growing:
            rates[flow] += step * weight[flow]
        for link in left:
            left[link] -= step * load[link]
        full = {link for link in left if left[link] <= 1e-9 * capacity[link]}
        growing -= {
            flow for flow in growing if full.intersection(links[flow]) or rates[flow] >= limit[flow] * (1 - 1e-9)
        }
    return rates


@dataclass(slots=True)
class _Flow:
    """A probe or a copy under way: it waits for its first bytes, then shares the links."""

    moved_bytes: float
    begins_s: float
    weight: float
    finish: Callable[[float], None]
    copies: bool
    left_bytes: float = field(init=False)

    def __post_init__(self) -> None:
        self.left_bytes = self.moved_bytes


class FluidPath:
    """Simulate a path event by event; all draws follow the seed."""

    def __init__(self, path: SharedPath, seed: int) -> None:
        """Start with an idle path."""
        self.path, self.random = path, random.Random(seed)  # noqa: S311 - a simulation
        self.capacity = {"access": path.access * path.capacity_bytes_per_s, "wan": path.capacity_bytes_per_s}
        self.now_s, self.cross = 0.0, self._level()
        self.active: list[_Flow] = []
        self.copies: list[TimedCopy] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def run(self, copies: int) -> list[TimedCopy]:
        """Return so many copies in order of their ends."""
        self._change_level()
        for _ in range(self.path.flows):
            self._pause()
        while len(self.copies) < copies:
            self._advance()
        return self.copies

    def _level(self) -> float:
        return self.random.uniform(0.0, self.path.most_cross) * self.path.capacity_bytes_per_s

    def _change_level(self) -> None:
        self.cross = self._level()
        self._after(self.random.expovariate(1 / self.path.level_s), self._change_level)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now_s + seconds, call))

    def _pause(self) -> None:
        self._after(self.random.expovariate(1 / self.path.pause_s), self._probe)

    def _probe(self) -> None:
        """Probe the path, then copy."""
        began_s, round_trip_s = self.now_s, self._round_trip_s()

        def copy(ended_s: float) -> None:
            self._copy(PathProbe(PROBE_BYTES, ended_s - began_s, round_trip_s))

        self._start(PROBE_BYTES, copy, copies=False)

    def _copy(self, probe: PathProbe) -> None:
        began_s = self.now_s
        low, high = self.path.sizes
        competing = tuple(flow.left_bytes for flow in self.active if flow.copies)
        size = math.exp(self.random.uniform(math.log(low), math.log(high)))

        def finish(ended_s: float) -> None:
            measured = MeasuredCopy(size, ended_s - began_s, competing, probe)
            self.copies.append(TimedCopy(began_s, ended_s, measured))
            self._pause()

        self._start(size, finish, copies=True)

    def _round_trip_s(self) -> float:
        """Return the round trip of the moment: buffers inflate it by the root of the flows (Appenzeller 2004)."""
        flows = len(self.active) + CROSS_FLOWS * self.cross / self.path.capacity_bytes_per_s
        return self.path.round_trip_s * math.sqrt(max(1.0, flows)) * math.exp(self.random.gauss(0, 0.1))

    def _start(self, size_bytes: float, finish: Callable[[float], None], *, copies: bool) -> None:
        # One round trip opens the connection. Then the window doubles each round trip up to the flow's share.
        round_trip_s = self._round_trip_s()
        share = self.path.capacity_bytes_per_s / (len(self.active) + 1)
        window = min(share * round_trip_s, size_bytes) / (FIRST_WINDOW * SEGMENT_BYTES)
        wait_s = round_trip_s * (1 + max(0.0, math.log2(window)) if window > 0 else 1)
        weight = math.exp(self.random.gauss(0, UNFAIRNESS))
        self.active.append(_Flow(size_bytes, self.now_s + wait_s, weight, finish, copies))

    def _advance(self) -> None:
        """Go to the next event: a timer, the first bytes of a flow, or its end."""
        sending = [flow for flow in self.active if flow.begins_s <= self.now_s]
        links = [["access", "wan"]] * len(sending) + [["wan"]] * CROSS_FLOWS
        demands = [math.inf] * len(sending) + [self.cross / CROSS_FLOWS] * CROSS_FLOWS
        weights = [flow.weight for flow in sending] + [1.0] * CROSS_FLOWS
        rates = max_min_rates(links, self.capacity, demands=demands, weights=weights)
        ends = [self.now_s + flow.left_bytes / rate for flow, rate in zip(sending, rates, strict=False)]
        begins = [flow.begins_s for flow in self.active if flow.begins_s > self.now_s]
        next_s = min(*ends, *begins, *(at_s for at_s, _ in self.timers))
        for flow, rate, end_s in zip(sending, rates, ends, strict=False):
            flow.left_bytes = 0.0 if end_s <= next_s else flow.left_bytes - rate * (next_s - self.now_s)
        self.now_s = next_s
        for flow in [flow for flow in self.active if flow.left_bytes <= 0.0]:
            self.active.remove(flow)
            flow.finish(next_s)
        due = [timer for timer in self.timers if timer[0] <= next_s]
        self.timers = [timer for timer in self.timers if timer[0] > next_s]
        for _, call in due:
            call()
