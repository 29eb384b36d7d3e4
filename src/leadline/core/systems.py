"""A computing system as its users meet it: partitions, node types, limits, prices and what its scheduler takes."""

from dataclasses import dataclass
from enum import StrEnum

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.hardware import Confidence

UNLISTED_NODES = "not-shown"
"""The name of the node type of a partition whose nodes the scheduler does not show."""


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
    TRES_SUM = "tres-sum"
    """Hours × (cores × core rate + memory in GiB × its rate + GPUs × GPU rate + nodes × node rate), the billing weights
    of a Slurm partition (slurm.conf, TRESBillingWeights); what has no rate is not billed."""
    TRES_MAX = "tres-max"
    """The largest of those four in place of their sum (slurm.conf, PriorityFlags=MAX_TRES)."""
    TRES_MAX_AND_GPUS = "tres-max-and-gpus"
    """The largest of cores, memory and nodes, plus the GPUs (slurm.conf from 24.05, PriorityFlags=MAX_TRES_GRES)."""


@dataclass(frozen=True, slots=True)
class Billing:
    """A charge rule with its rates an hour; an absent rate is not known.

    ``currency`` is ``USD`` or the allocation's own unit (``Lonestar6 SU``): amounts in different currencies are never
    compared. ``charge_factor`` multiplies every rate (a queue's price within one allocation). ``whole_units`` rounds
    the shares of cores and memory up to whole cores or GPUs before the largest is taken. Under the billing weights of
    Slurm (``TRES_…``) an absent rate weighs nothing, ``gib_hour`` is the rate of a GiB of memory, and a job that names
    no memory has ``memory_bytes_per_core``, or the node's where that is not known.
    """

    rule: BillingRule
    currency: str
    core_hour: float | None = None
    gpu_hour: float | None = None
    node_hour: float | None = None
    gib_hour: float | None = None
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

    def price_text(self) -> str:
        """Return the price an hour as people write it, such as ``1 a core + 15 a GPU (USD)``."""
        if self.free:
            return "free"
        rates = (("core", self.core_hour), ("GiB", self.gib_hour), ("GPU", self.gpu_hour), ("node", self.node_hour))
        known = {unit: f"{rate * self.charge_factor:g} a {unit}" for unit, rate in rates if rate is not None}
        if not known:
            return "not known"
        gpu = known.pop("GPU", None) if self.rule is BillingRule.TRES_MAX_AND_GPUS else None
        joined = " + ".join(known.values())
        if len(known) > 1 and self.rule in (BillingRule.TRES_MAX, BillingRule.TRES_MAX_AND_GPUS):
            joined = f"the most of {', '.join(known.values())}"
        return f"{' + '.join(part for part in (joined, gpu) if part)} ({self.currency})"


@dataclass(frozen=True, slots=True)
class NodeType:
    """One kind of node.

    ``device`` names an accelerator of the catalog, ``None`` on a CPU node; ``gpus`` counts them as the scheduler does,
    and 0 beside a ``device`` means that the number is not known. GPUs without a ``device`` are of a model that the
    scheduler does not tell. ``processor`` names the CPU in the catalog of devices
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
    """What the scheduler will not go beyond, for one job; ``None`` is not known, or no limit.

    ``max_submitted_jobs`` is how many jobs one user may have queued and running there.
    """

    max_walltime_s: float | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    min_cores: int | None = None
    max_cores: int | None = None
    max_gpus: int | None = None
    min_memory_bytes: int | None = None
    max_submitted_jobs: int | None = None


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
    ``default_memory_bytes_per_core`` is what a job gets that names no memory.
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
    default_memory_bytes_per_core: int | None = None
    note: str = ""
    confidence: Confidence = Confidence.KNOWN
    source: str = ""
    as_of: str = ""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How a system's scheduler is set, where it was asked; ``None`` is not known.

    ``rejects_beyond_limits`` tells whether a job beyond a partition's limits is refused when it is submitted rather
    than left pending (EnforcePartLimits). ``max_array_size`` counts the elements of a job array.
    ``sampling_interval_s`` is how often the memory of running jobs is looked at (JobAcctGatherFrequency), 0 where only
    their end is. ``accounting_answered`` tells whether the limits of QOS and accounts are among those of the
    partitions, ``None`` where no such limits hold.
    """

    version: str = ""
    rejects_beyond_limits: bool | None = None
    max_array_size: int | None = None
    sampling_interval_s: float | None = None
    preemption: str = ""
    accounting_answered: bool | None = None


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
    scheduling: Scheduling | None = None
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


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One thing that differs between two looks at a system.

    ``kind`` is ``partition``, ``nodes``, ``limit``, ``price``, ``access`` or ``scheduling``; ``place`` is the partition
    (empty for the whole system), ``field`` what differs by its name in the noun, and ``sentence`` says it to people.
    """

    kind: str
    place: str
    field: str
    before: float | str | bool | None
    after: float | str | bool | None
    sentence: str


@dataclass(frozen=True, slots=True)
class SystemChange:
    """A system as it was, ``None`` where nothing was known of it, and as it is now."""

    before: System | None
    after: System
    changes: tuple[FieldChange, ...] = ()
