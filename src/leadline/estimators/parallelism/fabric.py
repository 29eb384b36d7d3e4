"""The links between the GPUs of a job: nodes, the network of each, assumptions where they are unknown, and collectives.

The usual network of a generation is that of its maker's reference server. DGX-1 (V100) has 4 × 100 Gb/s, and DGX A100
8 × 200. DGX H100, H200 and B200 have 8 × 400, a tray of GB200 NVL72 4 × 400, and one of GB300 NVL72 4 × 800 (NVIDIA's
datasheets and reference architectures). A node of Frontier has 4 × 200 for 8 MI250X dies (OLCF's user guide). A server
with MI300X has 8 × 400 (Azure ND MI300X v5). The range is that of the catalog's nodes of the same generation.

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

from leadline.core.frozen import Frozen
from leadline.core.graph import OpGraph, OpKind
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GBIT_BYTES
from leadline.core.workload import Workload

# Spread of a step for each unit of log distance from one island: congestion and stragglers have no term. An assumption,
# since nothing was measured there. It is half of the step model's, because overlap, fusing and an unknown network have
# bounds of their own.
SCALE_SPREAD = 0.1
SERVER, TRAY = 8, 4  # GPUs of a usual server, and of a node of superchips
LARGEST_SERVER = 16  # a link that joins more GPUs than this spans the nodes of a rack


class NetworkRange(Frozen):
    """Gb/s of each GPU to the network in one direction: the usual rate, and the ends of what is plausible."""

    usual: float
    low: float
    high: float


# Volta's low end is AWS's p3, Ampere's GCP's a2 and Anvil, Hopper's Stampede3, and so on.
_USUAL = {
    ("Volta", "SXM"): NetworkRange(25, 6, 50),
    ("Ampere", "SXM"): NetworkRange(200, 25, 200),
    ("Hopper", "SXM"): NetworkRange(400, 50, 400),
    ("Hopper", "superchip"): NetworkRange(200, 100, 400),
    ("Blackwell", "SXM"): NetworkRange(400, 200, 800),
    ("Blackwell", "superchip"): NetworkRange(400, 200, 800),
    ("Blackwell Ultra", "SXM"): NetworkRange(800, 400, 800),
    ("Blackwell Ultra", "superchip"): NetworkRange(800, 400, 800),
    ("CDNA2", "OAM"): NetworkRange(100, 50, 200),
    ("CDNA3", "OAM"): NetworkRange(400, 100, 400),
    ("CDNA4", "OAM"): NetworkRange(400, 200, 800),
}
_ANY_CARD = NetworkRange(12.5, 3, 50)  # one port of 100 Gb/s for eight cards; 25 to 400 Gb/s a node
_CPU_NODE = NetworkRange(100, 10, 200)  # Gb/s a node


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


def usual_network(device: Device) -> NetworkRange:
    """Return the network of servers with such a device; of a node for a CPU."""
    if device.kind is DeviceKind.CPU:
        return _CPU_NODE
    form = device.form_factor or ""
    return _USUAL.get((device.architecture or "", "SXM" if form.startswith("SXM") else form), _ANY_CARD)


def usual_node_gpus(device: Device) -> int:
    """Return the GPUs of a usual node with such a device."""
    return TRAY if device.form_factor == "superchip" else SERVER


def job_fabric(workload: Workload, device: Device, nodes: int | None, network_bytes_per_s: float | None) -> Fabric:
    """Return the links of a job on ``nodes``, each with this network; ``None`` where either is unknown.

    ``workload.network`` overrides the network.
    """
    gpus, assumptions = workload.gpus, []
    if nodes is None:
        nodes = -(-gpus // usual_node_gpus(device))
        if nodes > 1:
            size = usual_node_gpus(device)
            assumptions.append(f"assumed {nodes} nodes of {size} GPUs: name a system with known nodes after --on")
    per_node = -(-gpus // nodes)
    usual = usual_network(device)
    unit, times = ("node", 1) if device.kind is DeviceKind.CPU else ("GPU", per_node)
    point, low, high = (rate * times * GBIT_BYTES for rate in (usual.usual, usual.low, usual.high))
    if workload.network is not None:
        network_bytes_per_s = workload.network.bytes_per_s * (per_node if workload.network.per_gpu else 1)
    if network_bytes_per_s is not None:
        point = low = high = network_bytes_per_s
    joined = device.scale_up_gpus or 0
    in_island = min(nodes, joined // per_node) if joined > LARGEST_SERVER else 1
    islands = -(-nodes // in_island)
    if islands > 1 and low < high:
        assumptions.append(
            f"assumed network: {usual.usual:g} Gb/s a {unit}, as usual for {device.name}; the interval covers "
            f"{usual.low:g} to {usual.high:g} (set it with --network)"
        )
    if in_island > 1:
        assumptions.append(f"assumed: {in_island * per_node} GPUs in one domain of the devices' own link")
    point, low, high = (rate * in_island for rate in (point, low, high))
    return Fabric(islands, point, low, high, tuple(assumptions), nodes)


# Points (size in bytes, seconds), both ascending; empty where nothing was measured.
AllReduceCurve = tuple[tuple[float, float], ...]

_BYTES = (
    8192, 32768, 131072, 524288, 1048576, 1482910, 2097152, 2965820, 4194304, 5931641, 8388608, 11863283, 16777216,
    23726566, 33554432, 47453132, 67108864,
)  # fmt: skip
_MICROSECONDS = {
    ("Ampere", 2): (49.6, 52.2, 52.2, 52.2, 55.5, 55.5, 58.1, 60.3, 65.1, 77.1, 96.4, 115, 142, 184, 246, 326, 421),
    ("Ampere", 4): (24.1, 29.9, 55.1, 55.1, 62.8, 62.8, 62.8, 70.2, 85.2, 108, 132, 164, 204, 250, 322, 438, 587),
    ("Ampere", 8): (26.1, 33.6, 48.3, 48.3, 51.9, 69.7, 71.2, 79, 97.8, 119, 153, 199, 270, 351, 413, 515, 663),
    ("Hopper", 2): (17.4, 27, 27, 31.5, 39.9, 39.9, 39.9, 39.9, 40, 42.2, 45.7, 57, 74.2, 100, 135, 181, 239),
    ("Hopper", 4): (35.3, 40.9, 40.9, 40.9, 40.9, 40.9, 40.9, 40.9, 48.2, 50.2, 62, 74.1, 93, 123, 168, 230, 308),
    ("Hopper", 8): (25.8, 30.9, 30.9, 32.2, 33, 35.2, 40.4, 45.5, 52, 60, 75.9, 92.8, 119, 152, 198, 261, 335),
}
# The link of the measured devices, both ways together: a bridge or another link of their generation is not theirs.
_LINKS_BYTES_PER_S = {"Ampere": 600e9, "Hopper": 900e9}


def all_reduce_curve(device: Device, devices: int) -> AllReduceCurve:
    """Return the measured all-reduces of ``devices`` devices in one node; empty if unmeasured."""
    architecture, is_sxm = device.architecture or "", (device.form_factor or "").startswith("SXM")
    if not is_sxm or device.link_bytes_per_s != _LINKS_BYTES_PER_S.get(architecture):
        return ()
    times = _MICROSECONDS.get((architecture, devices), ())
    return tuple((float(size), time * 1e-6) for size, time in zip(_BYTES, times, strict=False))


# Practical one-way rate of a ×16 slot by generation: about three quarters of the wire rate.
PCIE_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 48e9}

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
        usual = usual_network(device).usual * GBIT_BYTES * -(-devices // nodes)
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
    return PCIE_BYTES_PER_S.get(device.pcie_generation or 4, 24e9), SLOT_HOP_S
