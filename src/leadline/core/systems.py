"""A computing system as its users meet it: partitions, node types, limits, prices and what its scheduler takes."""

from dataclasses import dataclass
from enum import StrEnum

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.hardware import Confidence


class BillingRule(StrEnum):
    """How a site turns a request into a charge; the formulas are in ``leadline.catalog.billing``."""

    CORES_AND_GPUS = "cores-and-gpus"
    """Hours × (effective cores × core rate + GPUs × GPU rate), effective cores = max(cores, memory ÷ memory per core)
    (OSC, HARP)."""
    NODE_HOURS = "node-hours"
    """Hours × whole nodes × rate (TACC, NERSC)."""
    CORE_HOURS = "core-hours"
    """Hours × max(cores, memory ÷ memory per core) × rate (SDSC, Anvil, LUMI-C)."""
    GPU_HOURS = "gpu-hours"
    """Hours × max(GPUs, cores ÷ cores per GPU, memory ÷ memory per GPU) × rate (Delta, Anvil, LUMI-G)."""
    INSTANCE_HOURS = "instance-hours"
    """Hours × instances × the instance's price (clouds)."""


@dataclass(frozen=True, slots=True)
class Billing:
    """A charge rule with its rates an hour; an absent rate is not known.

    ``currency`` is ``USD`` or the allocation's own unit (``Lonestar6 SU``): amounts in different currencies are never
    compared. ``charge_factor`` multiplies every rate (a queue's price within one allocation). ``whole_units`` rounds
    the shares of cores and memory up to whole cores or GPUs before the largest is taken.
    """

    rule: BillingRule
    currency: str
    core_hour: float | None = None
    gpu_hour: float | None = None
    node_hour: float | None = None
    memory_bytes_per_core: int | None = None
    memory_bytes_per_gpu: int | None = None
    cores_per_gpu: int | None = None
    charge_factor: float = 1.0
    minimum: float = 0.0
    whole_units: bool = False
    free: bool = False
    source: str = ""
    as_of: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class NodeType:
    """One kind of node.

    ``device`` names an accelerator of the catalog, ``None`` on a CPU node; ``gpus`` counts them as the scheduler does,
    and 0 beside a ``device`` means that the number is not known. ``processor`` names the CPU in the catalog of devices
    (one of ``sockets``), ``None`` when its figures are not there.
    """

    name: str
    count: int | None = None
    cpu_model: str | None = None
    processor: str | None = None
    sockets: int = 1
    cores: int | None = None
    memory_bytes: int | None = None
    usable_memory_bytes: int | None = None
    device: str | None = None
    gpus: int = 0
    interconnect: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler will not go beyond; ``None`` is not known."""

    max_walltime_s: float | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    min_cores: int | None = None
    max_cores: int | None = None
    max_gpus: int | None = None
    min_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SubmitRules:
    """Which batch options a site rejects or demands.

    ``rejects`` and ``requires`` are long option names such as ``--mem`` and ``--account``; ``gpu_option`` is how GPUs
    are asked for, with ``{gpus}`` per node and ``{total}``, ``None`` when the partition alone gives them.
    """

    rejects: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    gpu_option: str | None = "--gpus-per-node={gpus}"
    whole_nodes: bool = False
    constraint: str | None = None
    qos: str | None = None
    notes: tuple[str, ...] = ()
    launcher: str = "srun"
    """What starts a command once for each task of a job (TACC: ``ibrun``)."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A queue of one node type with its limits, price and rules.

    ``name`` is unique in its system; ``queue`` is what the scheduler calls it where that differs, and empty where no
    partition is given at all (the QOS and the constraint choose, or the site routes the job by what it asks for).
    """

    name: str
    node: NodeType
    queue: str | None = None
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
    aliases: tuple[str, ...] = ()
    source: str = ""
    as_of: str = ""
    note: str = ""

    def partition(self, name: str) -> Partition:
        """Return the partition of that name, whatever its case; a queue's own name will do where it is unique.

        Raises:
            UnknownName: there is none.
        """
        folded = name.casefold()
        exact = [one for one in self.partitions if one.name.casefold() == folded]
        queued = [one for one in self.partitions if (one.queue or "").casefold() == folded]
        found = exact or queued
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidInput(
                f"partition {name!r} of {self.name} has several node types: "
                f"write one of {', '.join(one.name for one in found)}"
            )
        raise UnknownName(f"partition of {self.name}", name, [one.name for one in self.partitions])
