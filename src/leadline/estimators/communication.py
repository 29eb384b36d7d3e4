"""Time of collectives between the devices of a job: latency and bandwidth of the slowest link of a ring."""

import re
from dataclasses import dataclass, replace

from leadline.core.graph import OpGraph, OpKind
from leadline.core.hardware import Device

PCIE_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 48e9}
"""What a ×16 slot moves one way, by generation, in practice (about three quarters of the wire rate)."""

NETWORK_EFFICIENCY = 0.8
LINK_EFFICIENCY = 0.75
INTRA_LATENCY_S = 8e-6
INTER_LATENCY_S = 25e-6

_GIGABITS = re.compile(r"(?:(?P<count>\d+)\s*[x×]\s*)?(?:[A-Z]+\d*\s*)*?(?P<rate>\d+)\s*Gb/s", re.IGNORECASE)
_NAMED_GIGABITS = {"xdr": 800, "ndr": 400, "hdr100": 100, "hdr": 200, "edr": 100, "slingshot": 200, "opa": 100}


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of ``devices``: bytes a second one way through its slowest link, and the latency of one hop."""

    devices: int
    bytes_per_s: float
    latency_s: float

    def all_reduce_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-reduce: 2(n−1)/n of the data passes every link, in 2(n−1) hops."""
        if self.devices < 2:
            return 0.0
        hops = 2 * (self.devices - 1)
        return hops * self.latency_s + hops / self.devices * size_bytes / self.bytes_per_s

    def all_gather_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-gather or reduce-scatter of ``size_bytes`` in total: half an all-reduce."""
        return self.all_reduce_s(size_bytes) / 2


def exchange_s(ring: Ring, graph: OpGraph) -> float:
    """Return the seconds that a step's collectives take on ``ring``.

    They are the ones the trace saw: all-reduces, and what moves half as much (gathers, reduce-scatters, all-to-all).
    A trace of a single process saw none: its gradients are then taken to be reduced once. Smaller groups keep their
    size; the largest is the whole job, whatever number of devices was traced.
    """
    seen = [op for op in graph.ops if op.kind is OpKind.COMMUNICATION and op.dims.get("ranks", 0) > 1]
    if not seen:
        return ring.all_reduce_s(graph.parameter_bytes)
    whole = max(op.dims["ranks"] for op in seen)
    total = 0.0
    for op in seen:
        among = ring if op.dims["ranks"] == whole else replace(ring, devices=min(op.dims["ranks"], ring.devices))
        reduced = op.name.rpartition(".")[2].startswith(("all_reduce", "allreduce"))
        seconds = among.all_reduce_s(op.dims["bytes"]) if reduced else among.all_gather_s(op.dims["bytes"])
        total += seconds * op.count
    return total


def ring_of(device: Device, devices: int, nodes: int = 1, interconnect: str | None = None) -> Ring:
    """Return the ring that joins ``devices`` over ``nodes``.

    Inside a node the device's own link counts (half of its bidirectional figure), else its PCIe slot; between nodes
    the network named by ``interconnect``, shared by the node's devices, 100 Gb/s when it is not known.
    """
    if nodes > 1:
        per_node = -(-devices // nodes)
        rate = (network_bytes_per_s(interconnect) or 12.5e9) * NETWORK_EFFICIENCY
        inside = _inside_bytes_per_s(device)
        return Ring(devices, min(rate, inside) if per_node > 1 else rate, INTER_LATENCY_S)
    return Ring(devices, _inside_bytes_per_s(device), INTRA_LATENCY_S)


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


def _inside_bytes_per_s(device: Device) -> float:
    if device.link_bytes_per_s:
        return device.link_bytes_per_s / 2 * LINK_EFFICIENCY
    return PCIE_BYTES_PER_S.get(device.pcie_generation or 4, 24e9)
