"""The links between the GPUs of a job: nodes, the network of each, assumptions where they are unknown, and collectives.

``links.toml`` holds the usual networks, with their sources.

**Collectives.** Inside a node or rack they follow curves fitted to measured ones (``collectives.py``). Between nodes
the model is α–β: a hop costs its latency, a byte the time of the slowest link (Thakur, Rabenseifner and Gropp 2005). A
gather passes (n−1)/n of the data in n−1 hops, an all-reduce twice that. A tree of few hops is used where it is faster,
as NCCL does.
"""

import math
from dataclasses import replace
from pathlib import Path

import msgspec

from leadline.core.frozen import Frozen
from leadline.core.graph import OpGraph, OpKind
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GBIT_BYTES
from leadline.core.workload import Workload
from leadline.estimators.parallelism.collectives import (
    OTHER,
    SLOT,
    Collective,
    LinkCurves,
    link_curves,
    link_generation,
    timed_seconds,
)

# Spread of a step for each unit of log distance from one island: congestion and stragglers have no term. An assumption,
# since nothing was measured there. It is half of the step model's, because overlap, fusing and an unknown network have
# bounds of their own.
SCALE_SPREAD = 0.1
# Deviation of the logarithm of an exchange's time over a network, an assumption: congestion and stragglers have no term
# of their own. On Leonardo's InfiniBand, other jobs halve the rate of all-reduces on 1,024 GPUs (De Sensi et al. 2024).
NETWORK_SPREAD = 0.5
TIMED_SPREAD = 0.1  # the same after a sweep of this machine: other messages and moments differ a little
# Share of latency in the time of an exchange, assumptions: gradients are large, and a token's activations are small.
LATENCY_SHARES = {True: 0.1, False: 0.5}
NETWORK_EFFICIENCY = 0.8  # usual share of a network's rate in large collectives
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


class _Links(Frozen):
    """The content of ``links.toml``: servers by architecture and form or by form alone; efficiencies."""

    generations: dict[str, UsualServer]
    forms: dict[str, UsualServer]
    technologies: dict[str, float]


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
    network_efficiency: float = NETWORK_EFFICIENCY  # share of its rate in large collectives

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


def job_fabric(
    workload: Workload,
    device: Device,
    nodes: int | None,
    network_bytes_per_s: float | None,
    network_technology: str | None = None,
) -> Fabric:
    """Return the links of a job on ``nodes``, each with this network; ``None`` where any is unknown.

    ``workload.network`` overrides the network's rate.
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
    technologies = (share for name, share in _LINKS.technologies.items() if (network_technology or "").startswith(name))
    efficiency = next(technologies, NETWORK_EFFICIENCY)
    return Fabric(islands, point, low, high, tuple(assumptions), nodes, unknown_link, efficiency)


LINK_EFFICIENCY = 0.75
# Latency of one hop of a ring over the devices' own link, over PCIe, and between nodes: the constants of NCCL's own
# cost model for large messages (src/graph/tuning.cc, protocol Simple).
LINK_HOP_S, SLOT_HOP_S, NETWORK_HOP_S = 3.4e-6, 5.7e-6, 14e-6

ONE_SHOT_S = 4e-6  # of an engine's all-reduce, beside its traffic


class Ring(Frozen):
    """A ring of ``devices`` over ``nodes``, with one-way bandwidth of its slowest link and latencies.

    ``curves`` are those of its links, where it crosses no network, and ``link_bytes_per_s`` their rate. ``measured``
    tells whether their generation was. Times of a sweep of this very machine (``timed``) go before the curves.
    """

    devices: int
    bytes_per_s: float
    latency_s: float  # of a hop inside a node
    nodes: int = 1
    network_latency_s: float = NETWORK_HOP_S  # of a hop between nodes
    curves: LinkCurves | None = None
    link_bytes_per_s: float = 0.0
    measured: bool = False
    timed: Device | None = None  # device whose machine was swept

    def all_reduce_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-reduce; between nodes, of the faster of a ring and a tree."""
        return self.collective_s(Collective.ALL_REDUCE, size_bytes)

    def one_shot_all_reduce_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-reduce in a serving engine, whose GPUs read small tensors of all others whole.

        The kernels of TensorRT-LLM and SGLang take 3 to 6 µs for a few KiB, where NCCL takes 7 to 26 (aiconfigurator).
        """
        seconds = self.all_reduce_s(size_bytes)
        if self.curves is None or self.devices < 2 or not self.link_bytes_per_s:
            return seconds
        return min(seconds, ONE_SHOT_S + (self.devices - 1) * size_bytes / self.link_bytes_per_s)

    def all_gather_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-gather of ``size_bytes`` in total."""
        return self.collective_s(Collective.ALL_GATHER, size_bytes)

    def send_s(self, size_bytes: float) -> float:
        """Return the seconds of sending ``size_bytes`` to the next device of the ring, over its slowest link."""
        return self.collective_s(Collective.SEND, size_bytes)

    def collective_s(self, collective: Collective, size_bytes: float) -> float:
        """Return the seconds of a collective; ``size_bytes`` are those of the largest tensor of a device."""
        if self.devices < 2 or size_bytes <= 0:
            return 0.0
        if self.timed and (seconds := timed_seconds(self.timed, collective, self.devices, size_bytes)) is not None:
            return seconds
        if self.curves is not None:
            curve = self.curves.curves[collective]
            return curve.seconds(collective, size_bytes, self.devices, self.link_bytes_per_s)
        if collective is Collective.SEND:
            return (self.network_latency_s if self.nodes > 1 else self.latency_s) + size_bytes / self.bytes_per_s
        once_s = self.hops_s + self.transfer_s(size_bytes)
        if collective is not Collective.ALL_REDUCE:
            return once_s
        return min(2 * once_s, self._tree_s(size_bytes)) if self.nodes > 1 else 2 * once_s

    def transfer_s(self, size_bytes: float) -> float:
        """Return the seconds that the bytes of a gather take, without any latency."""
        return (self.devices - 1) / self.devices * size_bytes / self.bytes_per_s

    def spread(self, *, large: bool) -> float:
        """Return the deviation of the logarithm of an exchange's time; ``large`` messages are those of training."""
        if self.timed is not None:
            return TIMED_SPREAD
        return NETWORK_SPREAD if self.curves is None else self.curves.spread(LATENCY_SHARES[large])

    @property
    def hops_s(self) -> float:
        """The seconds of latency in once round the ring."""
        if self.nodes < 2:
            return (self.devices - 1) * self.latency_s
        return (self.devices - self.nodes) * self.latency_s + self.nodes * self.network_latency_s

    def _tree_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-reduce up and down a tree of nodes whose devices form chains."""
        inside_s = (self.devices / self.nodes - 1) * self.latency_s
        return 2 * (inside_s + math.log2(self.nodes) * self.network_latency_s + size_bytes / self.bytes_per_s)


def exchange_s(ring: Ring, graph: OpGraph, traced: int = 1) -> float:
    """Return the seconds that the collectives of a step take on ``ring``; ``traced`` processes ran in the trace."""
    # They are the traced ones. A trace of one process has none, so its gradients count as reduced once. Smaller groups
    # keep their size. One of all traced processes is the whole job, whatever their number.
    if not sees_collectives(graph):
        return ring.all_reduce_s(graph.parameter_bytes)
    collectives = [op for op in graph.ops if op.kind is OpKind.COMMUNICATION and op.dims.get("ranks", 0) > 1]
    whole = max(traced, *(op.dims["ranks"] for op in collectives))
    total = 0.0
    for op in collectives:
        among = ring if op.dims["ranks"] == whole else _smaller(ring, op.dims["ranks"])
        total += among.collective_s(_collective(op.name), op.dims["bytes"]) * op.count
    return total


def _collective(name: str) -> Collective:
    """Return the collective of a traced op, by default a gather."""
    word = name.rpartition(".")[2].replace("_", "")
    return next((each for each in Collective if each.value.replace("_", "") in word), Collective.ALL_GATHER)


def sees_collectives(graph: OpGraph) -> bool:
    """Return whether the trace saw collectives of several processes."""
    return any(op.kind is OpKind.COMMUNICATION and op.dims.get("ranks", 0) > 1 for op in graph.ops)


def make_ring(
    device: Device,
    devices: int,
    nodes: int = 1,
    node_bytes_per_s: float | None = None,
    *,
    sharing: int = 1,
    network_efficiency: float = NETWORK_EFFICIENCY,
) -> Ring:
    """Return the ring that joins ``devices`` over ``nodes``.

    Inside a node the device's own link counts (half of its bidirectional figure), else its PCIe slot; between nodes
    the network of a node, which its devices share, by default the usual one. ``sharing`` rings pass through each
    node's network at once (those of other tensor-parallel ranks).
    """
    nodes = min(nodes, devices)
    per_node = -(-devices // nodes)
    through_slot = not (device.link_bytes_per_s and per_node <= (device.scale_up_gpus or per_node))
    unknown = _knows_no_link(device, per_node)
    # A bridge joins two or four cards. More of them meet at their slots.
    link, hop_s = (device.link_bytes_per_s or 0) / 2, LINK_HOP_S
    if through_slot:
        link, hop_s = (None if unknown else device.host_bytes_per_s) or UNKNOWN_LINK, SLOT_HOP_S
    inside = link if through_slot else link * LINK_EFFICIENCY
    if nodes > 1:
        usual = usual_server(device).usual * GBIT_BYTES * per_node
        rate = (node_bytes_per_s or usual) * network_efficiency / sharing
        return Ring(devices, min(rate, inside) if devices > nodes else rate, hop_s, nodes)
    if device.kind is DeviceKind.CPU:
        return Ring(devices, inside, hop_s)
    timings = device.calibration.collectives if device.calibration else ()
    swept = any(timing.dims["devices"] == devices for timing in timings)
    name = OTHER if unknown else SLOT if through_slot else link_generation(device)
    return Ring(
        devices, inside, hop_s, curves=link_curves(name), link_bytes_per_s=link,
        measured=swept or name not in (OTHER, SLOT), timed=device if swept else None,
    )  # fmt: skip


def _smaller(ring: Ring, devices: int) -> Ring:
    """Return a ring of fewer devices over the same links."""
    devices = min(devices, ring.devices)
    return replace(ring, devices=devices, nodes=min(ring.nodes, devices))


def _knows_no_link(device: Device, devices: int) -> bool:
    """Return whether neither a link of so many devices nor a slot that they meet at is known."""
    joined = device.scale_up_gpus or devices
    if device.link_bytes_per_s and devices <= joined:
        return False
    # A device that joins others by a link does not use its slot for that, though nobody says how fast the link is.
    return devices > 1 and (device.host_bytes_per_s is None or (device.scale_up_gpus is not None and devices <= joined))
