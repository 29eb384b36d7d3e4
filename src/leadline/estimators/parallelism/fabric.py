"""The links between the GPUs of a job: nodes, the network of each, assumptions where they are unknown, and collectives.

``links.toml`` holds the usual networks and the measured collectives, with their sources.

**Collectives.** The model is α–β: a hop costs its latency, a byte the time of the slowest link (Thakur, Rabenseifner
and Gropp 2005). A gather passes (n−1)/n of the data in n−1 hops, an all-reduce twice that. Between nodes a tree of few
hops is used where it is faster, as NCCL does.

The measured all-reduces inside nodes are knots of curves that ``benchmarks/dnn/collective_model.py`` fitted to the
network profiles published with Vidur (MIT licence, data/profiling/network/a100_dgx and h100_dgx): nodes of eight GPUs
joined by NVSwitch. Straight lines between their logarithms meet the measured means above 1 MiB within 2.3 to 4.6 %
(mean absolute). Below it single times jump between two values, and the knots are their middle.
"""

import math
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

import msgspec

from leadline.core.frozen import Frozen
from leadline.core.graph import OpGraph, OpKind
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GB, GBIT_BYTES
from leadline.core.workload import Workload

# Spread of a step for each unit of log distance from one island: congestion and stragglers have no term. An assumption,
# since nothing was measured there. It is half of the step model's, because overlap, fusing and an unknown network have
# bounds of their own.
SCALE_SPREAD = 0.1
LARGEST_SERVER = 16  # a link that joins more GPUs than this spans the nodes of a rack


class UsualServer(Frozen):
    """A usual node: its GPUs, and Gb/s of each to the network in one direction with the ends of what is plausible.

    By default the network is unknown: the ends are those of all nodes, and their geometric mean.
    """

    gpus: int = 8
    usual: float = 50
    low: float = 3
    high: float = 800
    known: bool = True


class _MeasuredAllReduces(Frozen):
    """Link of the measured devices in GB/s by architecture, sizes in bytes, and microseconds by number of devices."""

    link_gb_per_s: dict[str, float]
    bytes: tuple[float, ...]
    microseconds: dict[str, dict[str, tuple[float, ...]]]


class _Links(Frozen):
    """The content of ``links.toml``: servers by architecture and form or by form alone, and collectives."""

    generations: dict[str, UsualServer]
    forms: dict[str, UsualServer]
    all_reduce: _MeasuredAllReduces


_LINKS = msgspec.toml.decode(Path(__file__).with_name("links.toml").read_bytes(), type=_Links)
_CPU_NODE = UsualServer(8, 100, 10, 200)  # Gb/s a node
# Bytes/s one way: the ends of all slots and links of the catalog, and about their geometric mean.
UNKNOWN_LINK, SLOWEST_LINK, FASTEST_LINK = 100e9, 12e9, 900e9


class Fabric(Frozen):
    """The ``islands`` of GPUs that the devices' own link joins, and the network of each in bytes/s, one way.

    An island is a node, or the nodes of a rack with one link. ``low`` and ``high`` are the ends of a network that is
    not known. ``assumptions`` are sentences for the user.
    """

    islands: int = 1
    island_bytes_per_s: float = 0.0
    low_bytes_per_s: float = 0.0
    high_bytes_per_s: float = 0.0
    assumptions: tuple[str, ...] = ()
    nodes: int = 1
    unknown_link: bool = False  # between the GPUs of a node

    def link_ends(self, device: Device) -> tuple[Device, Device]:
        """Return ``device`` with the slowest and the fastest link inside a node, if its own is unknown."""
        if not self.unknown_link:
            return device, device
        slow, fast = (2 * rate / LINK_EFFICIENCY for rate in (SLOWEST_LINK, FASTEST_LINK))
        device = replace(device, scale_up_gpus=None)
        return replace(device, link_bytes_per_s=slow), replace(device, link_bytes_per_s=fast)


def usual_server(device: Device) -> UsualServer:
    """Return the usual server of such a device: of its generation, else of its form, else the widest range."""
    if device.kind is DeviceKind.CPU:
        return _CPU_NODE
    form = "SXM" if (device.form_factor or "").startswith("SXM") else device.form_factor or ""
    generation = _LINKS.generations.get(f"{device.architecture} {form}".strip())
    return generation or _LINKS.forms.get(form, UsualServer(known=False))


def job_fabric(workload: Workload, device: Device, nodes: int | None, network_bytes_per_s: float | None) -> Fabric:
    """Return the links of a job on ``nodes``, each with this network; ``None`` where either is unknown.

    ``workload.network`` overrides the network.
    """
    gpus, assumptions, usual = workload.gpus, [], usual_server(device)
    if nodes is None:
        nodes = -(-gpus // usual.gpus)
        if nodes > 1:
            assumptions.append(f"assumed {nodes} nodes of {usual.gpus} GPUs: name a system with known nodes after --on")
    per_node = -(-gpus // nodes)
    unit, times = ("node", 1) if device.kind is DeviceKind.CPU else ("GPU", per_node)
    point, low, high = (rate * times * GBIT_BYTES for rate in (usual.usual, usual.low, usual.high))
    if workload.network is not None:
        network_bytes_per_s = workload.network.bytes_per_s * (per_node if workload.network.per_gpu else 1)
    if network_bytes_per_s is not None:
        point = low = high = network_bytes_per_s
    joined = device.scale_up_gpus or 0
    in_island = max(1, min(nodes, joined // per_node)) if joined > LARGEST_SERVER else 1
    islands = -(-nodes // in_island)
    if islands > 1 and low < high:
        ends = f"the interval covers {usual.low:g} to {usual.high:g} (set it with --network)"
        whose = f"{device.form_factor} devices" if usual in _LINKS.forms.values() else device.name
        of = f"as usual for {whose}" if usual.known else f"since that of {device.name} is unknown"
        assumptions.append(f"assumed network: {usual.usual:g} Gb/s a {unit}, {of}; {ends}")
    if in_island > 1:
        assumptions.append(f"assumed: {in_island * per_node} GPUs in one domain of the devices' own link")
    unknown_link = _knows_no_link(device, in_island * per_node)
    if unknown_link:
        ends = f"{SLOWEST_LINK / 1e9:g} to {FASTEST_LINK / 1e9:g} GB/s"
        assumptions.append(f"assumed link between {device.name} of a node: any, the interval covers {ends} one way")
    point, low, high = (rate * in_island for rate in (point, low, high))
    return Fabric(islands, point, low, high, tuple(assumptions), nodes, unknown_link)


# Points (size in bytes, seconds), both ascending; empty where nothing was measured.
AllReduceCurve = tuple[tuple[float, float], ...]


def all_reduce_curve(device: Device, devices: int) -> AllReduceCurve:
    """Return the measured all-reduces of ``devices`` devices in one node; empty if unmeasured.

    A bridge or another link of the same generation is not the measured one.
    """
    measured, architecture = _LINKS.all_reduce, device.architecture or ""
    is_sxm, link = (device.form_factor or "").startswith("SXM"), (device.link_bytes_per_s or 0) / GB
    if not is_sxm or link != measured.link_gb_per_s.get(architecture):
        return ()
    times = measured.microseconds[architecture].get(str(devices), ())
    return tuple((size, time * 1e-6) for size, time in zip(measured.bytes, times, strict=False))


NETWORK_EFFICIENCY = 0.8
LINK_EFFICIENCY = 0.75
# Latency of one hop of a ring over the devices' own link, over PCIe, and between nodes: the constants of NCCL's own
# cost model for large messages (src/graph/tuning.cc, protocol Simple).
LINK_HOP_S, SLOT_HOP_S, NETWORK_HOP_S = 3.4e-6, 5.7e-6, 14e-6


class Ring(Frozen):
    """A ring of ``devices`` over ``nodes``, with one-way bandwidth of its slowest link and latencies."""

    devices: int
    bytes_per_s: float
    latency_s: float  # of a hop inside a node
    nodes: int = 1
    network_latency_s: float = NETWORK_HOP_S  # of a hop between nodes
    curve: AllReduceCurve = ()  # measured all-reduces of this group, if any

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
        """Return the seconds by log-linear interpolation: constant below the curve, at the link's rate above it."""
        largest, last_s = self.curve[-1]
        if size_bytes > largest:
            return last_s + 2 * self.transfer_s(size_bytes - largest)
        place = max(bisect_left(self.curve, (size_bytes, 0.0)), 1)
        (low, low_s), (high, high_s) = self.curve[place - 1], self.curve[place]
        share = math.log(max(size_bytes, low) / low) / math.log(high / low)
        return float(low_s * (high_s / low_s) ** share)

    def _tree_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-reduce up and down a tree of nodes whose devices form chains."""
        inside_s = (self.devices / self.nodes - 1) * self.latency_s
        return 2 * (inside_s + math.log2(self.nodes) * self.network_latency_s + size_bytes / self.bytes_per_s)


def exchange_s(ring: Ring, graph: OpGraph) -> float:
    """Return the seconds that a step's collectives take on ``ring``."""
    # They are the traced ones: all-reduces, and those that move half as much (gathers, reduce-scatters, all-to-all). A
    # trace of one process has none, so its gradients count as reduced once. Smaller groups keep their size. The largest
    # one is the whole job, whatever number of devices was traced.
    if not sees_collectives(graph):
        return ring.all_reduce_s(graph.parameter_bytes)
    collectives = [op for op in graph.ops if op.kind is OpKind.COMMUNICATION and op.dims.get("ranks", 0) > 1]
    whole = max(op.dims["ranks"] for op in collectives)
    total = 0.0
    for op in collectives:
        among = ring if op.dims["ranks"] == whole else _smaller(ring, op.dims["ranks"])
        reduced = op.name.rpartition(".")[2].startswith(("all_reduce", "allreduce"))
        seconds = among.all_reduce_s(op.dims["bytes"]) if reduced else among.all_gather_s(op.dims["bytes"])
        total += seconds * op.count
    return total


def sees_collectives(graph: OpGraph) -> bool:
    """Return whether the trace saw collectives of several processes."""
    return any(op.kind is OpKind.COMMUNICATION and op.dims.get("ranks", 0) > 1 for op in graph.ops)


def make_ring(
    device: Device, devices: int, nodes: int = 1, node_bytes_per_s: float | None = None, *, sharing: int = 1
) -> Ring:
    """Return the ring that joins ``devices`` over ``nodes``.

    Inside a node the device's own link counts (half of its bidirectional figure), else its PCIe slot; between nodes
    the network of a node, which its devices share, by default the usual one. ``sharing`` rings pass through each
    node's network at once (those of other tensor-parallel ranks).
    """
    nodes = min(nodes, devices)
    inside, hop_s = _inside(device, -(-devices // nodes))
    if nodes > 1:
        usual = usual_server(device).usual * GBIT_BYTES * -(-devices // nodes)
        rate = (node_bytes_per_s or usual) * NETWORK_EFFICIENCY / sharing
        return Ring(devices, min(rate, inside) if devices > nodes else rate, hop_s, nodes)
    return Ring(devices, inside, hop_s, curve=all_reduce_curve(device, devices))


def _smaller(ring: Ring, devices: int) -> Ring:
    """Return a ring of fewer devices over the same links; its own collectives were not measured."""
    devices = min(devices, ring.devices)
    return ring if devices == ring.devices else replace(ring, devices=devices, nodes=min(ring.nodes, devices), curve=())


def _inside(device: Device, devices: int) -> tuple[float, float]:
    """Return bytes a second one way between so many devices of a node, and the latency of a hop."""
    # A bridge joins two or four cards. More of them meet at their slots.
    if device.link_bytes_per_s and devices <= (device.scale_up_gpus or devices):
        return device.link_bytes_per_s / 2 * LINK_EFFICIENCY, LINK_HOP_S
    known = None if _knows_no_link(device, devices) else device.host_bytes_per_s
    return known or UNKNOWN_LINK, SLOT_HOP_S


def _knows_no_link(device: Device, devices: int) -> bool:
    """Return whether neither a link of so many devices nor a slot that they meet at is known."""
    joined = device.scale_up_gpus or devices
    if device.link_bytes_per_s and devices <= joined:
        return False
    # A device that joins others by a link does not use its slot for that, though nobody says how fast the link is.
    return devices > 1 and (device.host_bytes_per_s is None or (device.scale_up_gpus is not None and devices <= joined))
