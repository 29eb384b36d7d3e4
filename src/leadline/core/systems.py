"""A computing system as its users meet it: partitions, node types, limits, prices and what its scheduler takes."""

from dataclasses import dataclass
from enum import StrEnum

from leadline.core.hardware import Confidence


class BillingRule(StrEnum):
    """How a site turns a request into a charge; the formulas are in ``leadline.catalog.billing``."""

    CORES_AND_GPUS = "cores-and-gpus"
    """Hours × (effective cores × core rate + GPUs × GPU rate), effective cores = max(cores, memory ÷ memory per core)
    (OSC, HARP)."""
    NODE_HOURS = "node-hours"
    """Hours × whole nodes × rate (TACC, NERSC)."""
    CORE_HOURS = "core-hours"
    """Hours × max(cores, memory share of the node) × rate (SDSC, Anvil)."""
    GPU_HOURS = "gpu-hours"
    """Hours × max(GPUs, core and memory shares in GPUs) × rate."""
    INSTANCE_HOURS = "instance-hours"
    """Hours × instances × the instance's price (clouds)."""


@dataclass(frozen=True, slots=True)
class Billing:
    """A charge rule with its rates, in ``currency`` (``USD`` or ``SU``) an hour; an absent rate is not known."""

    rule: BillingRule
    currency: str
    core_hour: float | None = None
    gpu_hour: float | None = None
    node_hour: float | None = None
    memory_bytes_per_core: int | None = None
    memory_bytes_per_gpu: int | None = None
    cores_per_gpu: int | None = None
    minimum: float = 0.0
    free: bool = False


@dataclass(frozen=True, slots=True)
class NodeType:
    """One kind of node; ``device`` names an accelerator of the catalog, ``None`` on a CPU node."""

    name: str
    count: int | None = None
    cpu_model: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    usable_memory_bytes: int | None = None
    device: str | None = None
    gpus: int = 0
    interconnect: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler will not go beyond; ``None`` is not known."""

    max_walltime_s: float | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    min_cores: int | None = None
    max_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class SubmitRules:
    """Which batch options a site rejects or demands.

    ``rejects`` are option names such as ``--mem``; ``gpu_option`` is how GPUs are asked for, with ``{gpus}`` per node
    and ``{total}``, ``None`` when the partition alone gives them.
    """

    rejects: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    gpu_option: str | None = "--gpus-per-node={gpus}"
    whole_nodes: bool = False
    constraint: str | None = None
    qos: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """A queue of one node type with its limits, price and rules."""

    name: str
    node: NodeType
    limits: Limits = Limits()
    billing: Billing | None = None
    rules: SubmitRules = SubmitRules()
    preemptible: bool = False
    restricted: bool = False
    interactive: bool = False
    note: str = ""
    confidence: Confidence = Confidence.KNOWN
    source: str = ""
    as_of: str = ""


@dataclass(frozen=True, slots=True)
class System:
    """One machine of a site, a cloud region, or a family of edge boards."""

    name: str
    site: str
    kind: str
    status: str
    scheduler: str
    partitions: tuple[Partition, ...] = ()
    source: str = ""
    as_of: str = ""
    note: str = ""
