"""Cost of a request under each site's charge rule, from published formulas."""

import math
from collections.abc import Sequence

from leadline.core.errors import InvalidInput
from leadline.core.jobs import ResourceSpec
from leadline.core.systems import Billing, BillingRule, NodeType
from leadline.core.units import GIB


def compute_charge(billing: Billing, request: ResourceSpec, hours: float, node: NodeType) -> float | None:
    """Return the cost of ``request`` for ``hours`` on nodes of that type, in ``billing.currency``.

    The result is ``None`` if a required rate is unknown, and 0.0 where the queue is free. Cores and memory that the
    request leaves open follow the rule's defaults. Under ``CORES_AND_GPUS``, a job over several nodes pays for whole
    nodes. The minimum charge applies once.

    Raises:
        InvalidInput: ``hours`` is negative or not a number.
    """
    if not hours >= 0:
        raise InvalidInput(f"{hours} hours cannot be charged: the time must be 0 or more")
    if billing.free:
        return 0.0
    hourly = _RULES[billing.rule](billing, request, node)
    if hourly is None:
        return None
    return max(billing.minimum, hourly * billing.charge_factor * hours)


def effective_cores(request: ResourceSpec, node: NodeType, memory_bytes_per_core: int | None) -> float | None:
    """Return the cores over all nodes, or the memory's equivalent if larger (OSC's effective cores).

    Without a core count in the request, the whole node counts; ``None`` if the node's cores are unknown.
    """
    cores = _cores_per_node(request, node)
    if cores is None:
        return None
    if memory_bytes_per_core and request.memory_bytes_per_node:
        cores = max(cores, request.memory_bytes_per_node / memory_bytes_per_core)
    return cores * request.nodes


def _cores_and_gpus(billing: Billing, request: ResourceSpec, node: NodeType) -> float | None:
    cores = effective_cores(request, node, billing.memory_bytes_per_core)
    gpus = request.gpus_per_node
    if request.nodes > 1:
        cores = None if node.cores is None else node.cores * request.nodes
        gpus = node.gpus or gpus
    core_cost, gpu_cost = _times(cores, billing.core_hour), _times(gpus * request.nodes, billing.gpu_hour)
    return None if core_cost is None or gpu_cost is None else core_cost + gpu_cost


def _node_hours(billing: Billing, request: ResourceSpec, _: NodeType) -> float | None:
    return _times(request.nodes, billing.node_hour)


def _core_hours(billing: Billing, request: ResourceSpec, node: NodeType) -> float | None:
    cores = effective_cores(request, node, billing.memory_bytes_per_core)
    return _times(_whole(cores, billing), billing.core_hour)


def _gpu_hours(billing: Billing, request: ResourceSpec, node: NodeType) -> float | None:
    """Charge the largest of the GPUs, the cores' share and the memory's share, in GPUs."""
    shares = [float(request.gpus_per_node)]
    cores = None if request.cores_per_task is None else _cores_per_node(request, node)
    if billing.cores_per_gpu and cores:
        shares.append(cores / billing.cores_per_gpu)
    if billing.memory_bytes_per_gpu and request.memory_bytes_per_node:
        shares.append(request.memory_bytes_per_node / billing.memory_bytes_per_gpu)
    largest = max(_whole(share, billing) or 0.0 for share in shares)
    return _times(largest * request.nodes, billing.gpu_hour)


def _tres(billing: Billing, request: ResourceSpec, node: NodeType) -> float | None:
    """Weight cores, memory, nodes and GPUs, and combine them; ``None`` if a weighted amount is unknown."""
    cores = _cores_per_node(request, node)
    memory = request.memory_bytes_per_node or node.memory_bytes
    if not request.memory_bytes_per_node and billing.memory_bytes_per_core and cores is not None:
        memory = math.ceil(cores * billing.memory_bytes_per_core)
    gib = None if memory is None else memory / GIB
    amounts = ((cores, billing.core_hour), (gib, billing.gib_hour), (1.0, billing.node_hour))
    weighted = [_times(amount, rate) for amount, rate in amounts if rate]
    costs = [cost * request.nodes for cost in weighted if cost is not None]
    if len(costs) < len(weighted):
        return None
    return combine_tres(billing.rule, costs, request.gpus_per_node * request.nodes * (billing.gpu_hour or 0.0))


def combine_tres(rule: BillingRule, costs: Sequence[float], gpus: float) -> float:
    """Return the charge under one of Slurm's rules for the ``costs`` of cores, memory and nodes, and that of GPUs."""
    if rule is BillingRule.TRES_SUM:
        return sum([0.0, *costs]) + gpus
    others = max([0.0, *costs])
    return max(others, gpus) if rule is BillingRule.TRES_MAX else others + gpus


_RULES = {
    BillingRule.CORES_AND_GPUS: _cores_and_gpus,
    BillingRule.NODE_HOURS: _node_hours,
    BillingRule.CORE_HOURS: _core_hours,
    BillingRule.GPU_HOURS: _gpu_hours,
    BillingRule.INSTANCE_HOURS: _node_hours,
    BillingRule.TRES_SUM: _tres,
    BillingRule.TRES_MAX: _tres,
    BillingRule.TRES_MAX_AND_GPUS: _tres,
}


def _cores_per_node(request: ResourceSpec, node: NodeType) -> float | None:
    if request.cores_per_task is None:
        return None if node.cores is None else float(node.cores)
    return float(request.cores_per_task * request.tasks_per_node)


def _whole(amount: float | None, billing: Billing) -> float | None:
    return float(math.ceil(amount)) if amount is not None and billing.whole_units else amount


def _times(amount: float | None, rate: float | None) -> float | None:
    """Multiply; an amount of 0 costs 0 even at an unknown rate."""
    if amount == 0:
        return 0.0
    return None if amount is None or rate is None else amount * rate
