"""The links between the GPUs of a job: nodes, the network of each, and the assumptions where they are unknown.

The usual network of a generation is that of its maker's reference server. DGX-1 (V100) has 4 × 100 Gb/s, and DGX A100
8 × 200. DGX H100, H200 and B200 have 8 × 400, a tray of GB200 NVL72 4 × 400, and one of GB300 NVL72 4 × 800 (NVIDIA's
datasheets and reference architectures). A node of Frontier has 4 × 200 for 8 MI250X dies (OLCF's user guide). A server
with MI300X has 8 × 400 (Azure ND MI300X v5). The range is that of the catalog's nodes of the same generation.
"""

from leadline.core.frozen import Frozen
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GBIT_BYTES
from leadline.core.workload import Workload

SCALE_SPREAD = 0.1
"""Spread of a step for each unit of log distance from one island: congestion and stragglers have no term.

An assumption, since nothing was measured there. It is half of the step model's, because overlap, fusing and an unknown
network have bounds of their own."""
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
