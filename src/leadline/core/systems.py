"""Computing systems: partitions, node types, limits, prices and submit rules."""

from enum import StrEnum

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.hardware import Confidence

UNLISTED_NODES = "not-shown"  # name of the node type of a partition whose nodes the scheduler hides


class BillingRule(StrEnum):
    """A site's rule for charging a request; ``leadline.catalog.billing`` holds the formulas."""

    CORES_AND_GPUS = "cores-and-gpus"
    """Hours × (effective cores × core rate + GPUs × GPU rate), effective cores = max(cores, memory ÷ memory per core)
    (OSC, HARP)."""
    NODE_HOURS = "node-hours"  # hours × whole nodes × rate (TACC, NERSC)
    CORE_HOURS = "core-hours"  # hours × max(cores, memory ÷ memory per core) × rate (SDSC, Anvil, LUMI-C)
    GPU_HOURS = "gpu-hours"
    """Hours × max(GPUs, cores ÷ cores per GPU, memory ÷ memory per GPU) × rate (Delta, Anvil, LUMI-G)."""
    INSTANCE_HOURS = "instance-hours"  # hours × instances × the instance's price (clouds)
    TRES_SUM = "tres-sum"
    """Hours × (cores × core rate + memory in GiB × its rate + GPUs × GPU rate + nodes × node rate).

    These are the billing weights of a Slurm partition (slurm.conf, TRESBillingWeights); a resource without a rate is
    free."""
    TRES_MAX = "tres-max"  # the largest of those four instead of their sum (slurm.conf, PriorityFlags=MAX_TRES)
    TRES_MAX_AND_GPUS = "tres-max-and-gpus"
    """The largest of cores, memory and nodes, plus the GPUs (slurm.conf from 24.05, PriorityFlags=MAX_TRES_GRES)."""


class Billing(Frozen):
    """A charge rule with its hourly rates; an absent rate is unknown.

    Under Slurm's billing weights (``TRES_…``), an absent rate is zero. A job without a memory request then counts
    ``memory_bytes_per_core``, or the node's memory if that is unknown.
    """

    rule: BillingRule
    currency: str
    """``USD`` or the allocation's own unit (``Lonestar6 SU``); amounts in different currencies are never compared."""
    core_hour: float | None = None
    gpu_hour: float | None = None
    node_hour: float | None = None
    gib_hour: float | None = None  # rate of a GiB of memory
    memory_bytes_per_core: int | None = None
    memory_bytes_per_gpu: int | None = None
    cores_per_gpu: int | None = None
    charge_factor: float = 1.0  # multiplier of every rate (a queue's price within one allocation)
    minimum: float = 0.0
    whole_units: bool = False  # True if shares of cores and memory are rounded up to whole cores or GPUs
    free: bool = False
    source: str = ""
    as_of: str = ""
    note: str = ""

    def price_text(self) -> str:
        """Format the hourly price for people, such as ``1 a core + 15 a GPU (USD)``."""
        if self.free:
            return "free"
        rates = (("core", self.core_hour), ("GiB", self.gib_hour), ("GPU", self.gpu_hour), ("node", self.node_hour))
        prices = {unit: f"{rate * self.charge_factor:g} a {unit}" for unit, rate in rates if rate is not None}
        if not prices:
            return "not known"
        gpu = prices.pop("GPU", None) if self.rule is BillingRule.TRES_MAX_AND_GPUS else None
        text = " + ".join(prices.values())
        if len(prices) > 1 and self.rule in (BillingRule.TRES_MAX, BillingRule.TRES_MAX_AND_GPUS):
            text = f"the most of {', '.join(prices.values())}"
        return f"{' + '.join(part for part in (text, gpu) if part)} ({self.currency})"


class NodeType(Frozen):
    """One kind of node."""

    name: str
    count: int | None = None
    cpu_model: str | None = None
    processor: str | None = None  # the CPU in the catalog of devices (one of `sockets`); `None` if it is not there
    sockets: int = 1
    cores: int | None = None
    memory_bytes: int | None = None
    usable_memory_bytes: int | None = None
    device: str | None = None  # accelerator in the catalog; `None` on a CPU node or if the scheduler hides the model
    gpus: int = 0  # number of GPUs by the scheduler's count; 0 with a `device` means unknown
    interconnect: str | None = None  # the network as the site describes it
    network_technology: str | None = None  # such as `InfiniBand NDR`
    network_bytes_per_s: float | None = None  # from the node to the network, all its NICs together, in one direction
    nics: int | None = None
    scale_up_gpus: int | None = None  # GPUs joined by the device's own link, over several nodes in a rack (NVL72: 72)
    power_limit_w: float | None = None  # of each GPU, if the site sets one below the factory limit
    note: str = ""


class Limits(Frozen):
    """The scheduler's limits for one job; ``None`` means unknown or unlimited."""

    max_walltime_s: float | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    min_cores: int | None = None
    max_cores: int | None = None
    max_gpus: int | None = None
    min_memory_bytes: int | None = None
    max_submitted_jobs: int | None = None  # how many jobs one user may have queued and running


class SubmitRules(Frozen):
    """Batch options that a site rejects or requires.

    ``rejects`` and ``requires`` are long option names such as ``--mem`` and ``--account``. ``gpu_option`` requests
    GPUs, with ``{gpus}`` per node and ``{total}``; ``None`` if the partition alone assigns them.
    """

    rejects: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    gpu_option: str | None = "--gpus-per-node={gpus}"
    whole_nodes: bool = False
    constraint: str | None = None
    qos: str | None = None
    notes: tuple[str, ...] = ()
    launcher: str = "srun"  # program that starts a command once for each task of a job (TACC: `ibrun`)


class Partition(Frozen):
    """A queue of one node type with its limits, price and rules."""

    name: str  # unique name in the system
    node: NodeType
    queue: str | None = None
    """The scheduler's name if it differs; empty if jobs name no partition, because QOS and constraint choose it or
    the site routes jobs."""
    limits: Limits = Limits()
    billing: Billing | None = None
    rules: SubmitRules = SubmitRules()
    preemptible: bool = False
    restricted: bool = False
    interactive: bool = False
    default_memory_bytes_per_core: int | None = None  # memory of a job that requests none
    note: str = ""
    confidence: Confidence = Confidence.KNOWN
    source: str = ""
    as_of: str = ""


class Scheduling(Frozen):
    """Scheduler settings of a probed system; ``None`` is unknown."""

    version: str = ""
    rejects_beyond_limits: bool | None = None
    """True if a job beyond a partition's limits is refused rather than left pending (EnforcePartLimits)."""
    max_array_size: int | None = None  # most elements of a job array
    sampling_interval_s: float | None = None
    """Seconds between memory samples of running jobs (JobAcctGatherFrequency); 0 if only their end is sampled."""
    preemption: str = ""
    accounting_answered: bool | None = None
    """True if the partitions' limits include those of QOS and accounts; ``None`` if no such limits hold."""


class System(Frozen):
    """A machine of a site, a cloud region, or a family of edge boards."""

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
        """Return the partition of that name, ignoring case; a queue name works where one partition has it."""
        folded = name.casefold()
        # A partition's own name wins: a site may call a queue by the name of another partition.
        exact = [partition for partition in self.partitions if partition.name.casefold() == folded]
        queued = [partition for partition in self.partitions if (partition.queue or "").casefold() == folded]
        matches = exact or queued
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise InvalidInput(
                f"partition {name!r} of {self.name} has several node types: "
                f"write one of {', '.join(partition.name for partition in matches)}"
            )
        raise UnknownName(f"partition of {self.name}", name, [partition.name for partition in self.partitions])


class FieldChange(Frozen):
    """One difference between two snapshots of a system, with a sentence for people."""

    kind: str  # `partition`, `nodes`, `limit`, `price`, `access` or `scheduling`
    place: str  # the partition; empty for the whole system
    field: str
    before: float | str | bool | None
    after: float | str | bool | None
    sentence: str


class SystemChange(Frozen):
    """A system before (``None`` if unknown) and after, with the differences."""

    before: System | None
    after: System
    changes: tuple[FieldChange, ...] = ()
