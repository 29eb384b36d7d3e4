"""Time of collectives between the devices of a job: rings and trees over the slowest link, measured ones as measured.

The law is α–β: a hop costs its latency, a byte the slowest link's time (Thakur, Rabenseifner and Gropp 2005). A gather
passes (n−1)/n of the data in n−1 hops, an all-reduce twice that; between nodes a tree of few hops is taken where it is
faster, as NCCL does. Links whose all-reduces were measured (``measured_links.py``) answer with the measured times.
"""

import math
import re
from bisect import bisect_left
from dataclasses import dataclass, replace

from leadline.core.graph import OpGraph, OpKind
from leadline.core.hardware import Device
from leadline.estimators.measured_links import Curve, all_reduce_curve

PCIE_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 48e9}
"""What a ×16 slot moves one way, by generation, in practice (about three quarters of the wire rate)."""

NETWORK_EFFICIENCY = 0.8
LINK_EFFICIENCY = 0.75
LINK_HOP_S, SLOT_HOP_S, NETWORK_HOP_S = 3.4e-6, 5.7e-6, 14e-6
"""Latency of one hop of a ring over the devices' own link, over PCIe, and between nodes: the constants of NCCL's own
cost model for large messages (src/graph/tuning.cc, protocol Simple)."""

_GIGABITS = re.compile(r"(?:(?P<count>\d+)\s*[x×]\s*)?(?:[A-Z]+\d*\s*)*?(?P<rate>\d+)\s*Gb/s", re.IGNORECASE)
_NAMED_GIGABITS = {"xdr": 800, "ndr": 400, "hdr100": 100, "hdr": 200, "edr": 100, "slingshot": 200, "opa": 100}


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of ``devices`` over ``nodes``: bytes a second one way through its slowest link, and latencies in seconds.

    ``latency_s`` is that of a hop inside a node, ``network_latency_s`` of one between nodes. ``curve`` holds measured
    all-reduces of this very group, where there are any.
    """

    devices: int
    bytes_per_s: float
    latency_s: float
    nodes: int = 1
    network_latency_s: float = NETWORK_HOP_S
    curve: Curve = ()

    @property
    def measured(self) -> bool:
        """Whether collectives of this group were measured."""
        return bool(self.curve)

    def all_reduce_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-reduce: measured, else the faster of a ring and, between nodes, a tree."""
        if self.devices < 2 or size_bytes <= 0:
            return 0.0
        if self.curve:
            return self._measured_s(size_bytes)
        ring_s = 2 * (self.hops_s + self.transfer_s(size_bytes))
        return min(ring_s, self._tree_s(size_bytes)) if self.nodes > 1 else ring_s

    def all_gather_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-gather or reduce-scatter of ``size_bytes`` in total."""
        if self.devices < 2 or size_bytes <= 0:
            return 0.0
        if self.curve:
            return self._measured_s(size_bytes) / 2
        return self.hops_s + self.transfer_s(size_bytes)

    def send_s(self, size_bytes: float) -> float:
        """Return the seconds of sending ``size_bytes`` to the next device of the ring, over its slowest link."""
        hop_s = self.network_latency_s if self.nodes > 1 else self.latency_s
        return hop_s + size_bytes / self.bytes_per_s

    def transfer_s(self, size_bytes: float) -> float:
        """Return the seconds that the bytes of a gather take, without any latency."""
        return (self.devices - 1) / self.devices * size_bytes / self.bytes_per_s

    @property
    def hops_s(self) -> float:
        """The seconds of latency in once round the ring."""
        if self.nodes < 2:
            return (self.devices - 1) * self.latency_s
        return (self.devices - self.nodes) * self.latency_s + self.nodes * self.network_latency_s

    def _measured_s(self, size_bytes: float) -> float:
        """Return the seconds of a measured all-reduce; what is larger than any goes on at the rate of the link."""
        largest, last_s = self.curve[-1]
        if size_bytes > largest:
            return last_s + 2 * self.transfer_s(size_bytes - largest)
        return on_curve(self.curve, size_bytes)

    def _tree_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-reduce up and down a tree of nodes whose devices form chains."""
        inside_s = (self.devices / self.nodes - 1) * self.latency_s
        return 2 * (inside_s + math.log2(self.nodes) * self.network_latency_s + size_bytes / self.bytes_per_s)


def on_curve(curve: Curve, size_bytes: float) -> float:
    """Return the seconds at a size by straight lines between logarithms; outside the curve those at its end."""
    place = bisect_left(curve, (size_bytes, 0.0))
    if place in (0, len(curve)):
        return curve[min(place, len(curve) - 1)][1]
    (low, low_s), (high, high_s) = curve[place - 1], curve[place]
    share = math.log(size_bytes / low) / math.log(high / low)
    return float(low_s * (high_s / low_s) ** share)


def exchange_s(ring: Ring, graph: OpGraph) -> float:
    """Return the seconds that a step's collectives take on ``ring``.

    They are the ones the trace saw: all-reduces, and what moves half as much (gathers, reduce-scatters, all-to-all).
    A trace of a single process saw none: its gradients are then taken to be reduced once. Smaller groups keep their
    size; the largest is the whole job, whatever number of devices was traced.
    """
    if not sees_collectives(graph):
        return ring.all_reduce_s(graph.parameter_bytes)
    seen = [op for op in graph.ops if op.kind is OpKind.COMMUNICATION and op.dims.get("ranks", 0) > 1]
    whole = max(op.dims["ranks"] for op in seen)
    total = 0.0
    for op in seen:
        among = ring if op.dims["ranks"] == whole else _smaller(ring, op.dims["ranks"])
        reduced = op.name.rpartition(".")[2].startswith(("all_reduce", "allreduce"))
        seconds = among.all_reduce_s(op.dims["bytes"]) if reduced else among.all_gather_s(op.dims["bytes"])
        total += seconds * op.count
    return total


def sees_collectives(graph: OpGraph) -> bool:
    """Return whether the trace saw collectives of several processes."""
    return any(op.kind is OpKind.COMMUNICATION and op.dims.get("ranks", 0) > 1 for op in graph.ops)


def ring_of(device: Device, devices: int, nodes: int = 1, interconnect: str | None = None, *, sharing: int = 1) -> Ring:
    """Return the ring that joins ``devices`` over ``nodes``.

    Inside a node the device's own link counts (half of its bidirectional figure), else its PCIe slot; between nodes
    the network named by ``interconnect``, shared by the node's devices, 100 Gb/s when it is not known. ``sharing``
    rings pass through each node's network at once (those of other tensor-parallel ranks).
    """
    inside, hop_s = _inside(device)
    nodes = min(nodes, devices)
    if nodes > 1:
        rate = (network_bytes_per_s(interconnect) or 12.5e9) * NETWORK_EFFICIENCY / sharing
        return Ring(devices, min(rate, inside) if devices > nodes else rate, hop_s, nodes)
    return Ring(devices, inside, hop_s, curve=all_reduce_curve(device, devices))


def network_bytes_per_s(interconnect: str | None) -> float | None:
    """Read the bandwidth of a node's network from its catalog text, such as ``4x IB HDR200``; ``None`` if not said."""
    if not interconnect:
        return None
    if match := _GIGABITS.search(interconnect):
        return int(match["count"] or 1) * int(match["rate"]) * 1e9 / 8
    folded = interconnect.casefold()
    count = re.search(r"(\d+)\s*[x×]", folded)
    for name, gigabits in _NAMED_GIGABITS.items():
        if name in folded:
            return int(count[1] if count else 1) * gigabits * 1e9 / 8
    return None


def _smaller(ring: Ring, devices: int) -> Ring:
    """Return a ring of fewer devices over the same links; its own collectives were not measured."""
    devices = min(devices, ring.devices)
    return ring if devices == ring.devices else replace(ring, devices=devices, nodes=min(ring.nodes, devices), curve=())


def _inside(device: Device) -> tuple[float, float]:
    """Return bytes a second one way between devices of a node, and the latency of a hop."""
    if device.link_bytes_per_s:
        return device.link_bytes_per_s / 2 * LINK_EFFICIENCY, LINK_HOP_S
    return PCIE_BYTES_PER_S.get(device.pcie_generation or 4, 24e9), SLOT_HOP_S
