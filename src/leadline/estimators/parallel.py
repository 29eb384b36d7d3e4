"""A step divided over the GPUs of a job: what each computes, what they send to each other, and what of it shows.

Layout as Megatron-LM's: the GPUs of a tensor-parallel group are neighbours, then come the copies that share data, then
the stages of the pipeline. Sources: sharding by Rajbhandari et al. 2020 (ZeRO); in tensor parallelism two all-reduces
of the activations a layer and pass by Shoeybi et al. 2019, and what it leaves of a layer's activations by Korthikanti
et al. 2022; the idle (p − 1)/m of a pipeline of p stages and m microbatches by Narayanan et al. 2021.
"""

from dataclasses import dataclass

from leadline.core.errors import InvalidInput
from leadline.core.graph import BYTES_PER_ELEMENT, OpGraph, OpKind, Stage, StorageCategory, TracedJob
from leadline.core.hardware import Device
from leadline.core.workload import Phase, Sharding, Workload
from leadline.estimators.communication import Ring, exchange_s, ring_of, sees_collectives
from leadline.estimators.device_memory import PeakMemory

UNHIDDEN = 0.31
"""Share of an exchange that shows however much computing there is to hide it behind. This and the smooth maximum of
computing and exchanging come from llm-foundry's training steps (8 to 512 GPUs, sharded in full): 0.31 ± 0.08."""
MOST_IN_A_NODE, USUAL_NODE = 16, 8
"""More GPUs than this are taken to be on several nodes of the usual size, where nobody says on how many they are."""
COLLECTIVE_LAUNCH_S = 20e-6
"""Time of the host to launch one collective, as Vidur takes it beside its profiles (nccl_cpu_launch_overhead)."""
BACKWARD = 2 / 3
"""Share of a step in which gradients appear, behind which their reduction hides."""


@dataclass(frozen=True, slots=True)
class Divided:
    """One step on each GPU: its seconds, the seconds of sending by purpose, what of these shows, and the idle ones.

    ``measured`` says whether every link that is used was measured; the others are taken at shares of their wire rate,
    ``slowest_bytes_per_s`` the least of them. ``assumed`` says what was taken of the nodes, where nobody said it.
    """

    step_s: float
    sent_s: dict[str, float]
    exposed_s: float
    idle_s: float
    measured: bool
    slowest_bytes_per_s: float
    assumed: str = ""

    @property
    def sentences(self) -> list[str]:
        """How much of the step is not computing, and what that rests on."""
        text = f"{self.exposed_s / self.step_s:.0%} of the step is exchange between GPUs not hidden behind computing"
        if self.idle_s:
            text += f", {self.idle_s / self.step_s:.0%} is waiting in the pipeline"
        if self.measured:
            return [text]
        rate = f"the links were not measured: {self.slowest_bytes_per_s / 1e9:.3g} GB/s one way is taken of the slowest"
        return [text, *([self.assumed] if self.assumed else []), rate]


@dataclass(frozen=True, slots=True)
class _Rings:
    """Who exchanges with whom: the copies, the tensor-parallel group, and neighbours in the pipeline."""

    data: Ring
    tensor: Ring
    pipeline: Ring


def divide(
    workload: Workload,
    job: TracedJob,
    device: Device,
    whole_s: float,
    *,
    optimizer_s: float = 0.0,
    launches_s: float = 0.0,
    nodes: int = 1,
    interconnect: str | None = None,
) -> Divided:
    """Divide a step that takes one GPU ``whole_s`` seconds, ``optimizer_s`` of them in the update.

    In tensor parallelism ``whole_s`` is what the GPUs of a group take together (``tensor_share.py`` tells what each
    runs). Its ops are as many on each of them, so that it never takes less than ``launches_s`` there, to which the
    launches of collectives are added where there are any.

    Raises:
        InvalidInput: the GPUs cannot be divided so, or the graph has no attention layers to divide.
    """
    plan, graph = workload.parallelism, job.step
    copies = plan.copies(workload.gpus)
    nodes, assumed = _nodes(workload.gpus, nodes, interconnect)
    rings = _rings(workload, device, copies, nodes, interconnect)
    training = workload.phase is Phase.TRAINING
    microbatches = max(workload.accumulation, job.loop.accumulation)
    if training and plan.sharding is not Sharding.NONE:
        whole_s -= optimizer_s * (1 - 1 / copies)
    stages = plan.pipeline if training else 1  # one forward pass goes through all stages, whoever holds them
    computing_s = max(whole_s / plan.tensor, _launched_s(workload, graph, launches_s)) / stages
    sent_s: dict[str, float] = {}
    shown_s = 0.0
    if plan.tensor > 1:
        sent_s["tensor parallelism"] = shown_s = _tensor_s(rings.tensor, graph, stages, again=workload.checkpointing)
    busy_s = computing_s + shown_s
    idle_s = busy_s * (stages - 1) / microbatches
    if plan.pipeline > 1:
        message = _activation_bytes(graph) / plan.tensor
        sends = 2 * (microbatches + stages - 1) if training else plan.pipeline - 1
        sent_s["pipeline"] = sends * rings.pipeline.send_s(message)
        shown_s += UNHIDDEN * sent_s["pipeline"]
    if training and copies > 1:
        data_s = _data_s(rings.data, workload, graph, microbatches)
        behind_s = computing_s if plan.sharding.gathers else BACKWARD * computing_s / microbatches
        sent_s["data parallelism"] = data_s
        shown_s += (behind_s**4 + data_s**4) ** 0.25 - behind_s + UNHIDDEN * data_s
    used = [ring for ring in (rings.data, rings.tensor) if ring.devices > 1] + [rings.pipeline] * (plan.pipeline > 1)
    slowest = min(ring.bytes_per_s for ring in used)
    measured = all(ring.measured for ring in used)
    return Divided(computing_s + shown_s + idle_s, sent_s, shown_s, idle_s, measured, slowest, assumed)


def divided_memory(peak: PeakMemory, workload: Workload, graph: OpGraph) -> PeakMemory:
    """Return what one GPU holds where the whole model on one GPU holds ``peak``: the fullest of the divided stages."""
    plan = workload.parallelism
    if plan.tensor * plan.pipeline == 1 and plan.sharding is Sharding.NONE:
        return _with_buckets(peak, workload, graph)
    stages = peak.by_stage or {Stage.FORWARD: peak.by_category}
    divided = {stage: _divided_moment(held, stage, workload, graph) for stage, held in stages.items()}
    held = max(divided.values(), key=lambda one: sum(one.values()))
    share = sum(held.values()) / max(sum(peak.by_category.values()), 1)
    return PeakMemory(int(peak.allocated_bytes * share), int(peak.reserved_bytes * share), held, divided)


def _with_buckets(peak: PeakMemory, workload: Workload, graph: OpGraph) -> PeakMemory:
    """Return the peak where copies of a model sum their gradients: DistributedDataParallel holds them twice.

    Beside the gradients it keeps the buckets that it sends, from the start (``gradient_as_bucket_view`` is off unless
    asked for). A step that was seen to scatter sums is sharded by its own script, and has no such buckets.
    """
    sharded = any("scatter" in op.name for op in graph.ops if op.kind is OpKind.COMMUNICATION)
    if workload.gpus < 2 or workload.phase is not Phase.TRAINING or sharded:
        return peak
    more = graph.parameter_bytes if graph.trained_bytes is None else graph.trained_bytes
    stages = {
        stage: {**held, StorageCategory.GRADIENT: held.get(StorageCategory.GRADIENT, 0) + more}
        for stage, held in (peak.by_stage or {Stage.FORWARD: peak.by_category}).items()
    }
    fullest = max(stages.values(), key=lambda held: sum(held.values()))
    return PeakMemory(peak.allocated_bytes + more, peak.reserved_bytes + more, fullest, stages)


def _divided_moment(
    whole: dict[StorageCategory, int], stage: Stage, workload: Workload, graph: OpGraph
) -> dict[StorageCategory, int]:
    """Return what one GPU holds of ``whole``, the fullest moment of a stage of the whole model."""
    plan = workload.parallelism
    copies, parts = plan.copies(workload.gpus), plan.tensor * plan.pipeline
    sharded = {
        StorageCategory.OPTIMIZER_STATE: plan.sharding is not Sharding.NONE,
        StorageCategory.GRADIENT: plan.sharding.gathers,
        StorageCategory.PARAMETER: plan.sharding is Sharding.FULL,
    }
    if stage is Stage.OPTIMIZER:  # an update works on the weights whose state is here
        sharded[StorageCategory.TEMPORARY] = plan.sharding is not Sharding.NONE
    held = dict(whole)
    for category, shared in sharded.items():
        held[category] = int(held.get(category, 0) / parts / (copies if shared else 1))
    if plan.sharding is Sharding.FULL:  # the weights of the layer in use, and of the next, are whole
        layers = max(1, _layers(graph) // max(workload.accumulation, 1))
        weights = whole.get(StorageCategory.PARAMETER, 0) / parts
        held[StorageCategory.PARAMETER] += int(min(2 / layers, 1 - 1 / copies) * weights)
    activations = held.get(StorageCategory.ACTIVATION, 0)
    held[StorageCategory.ACTIVATION] = int(activations * (10 + 24 / plan.tensor) / 34)
    if cache := held.get(StorageCategory.KV_CACHE, 0):
        held[StorageCategory.KV_CACHE] = cache_share(cache, workload, graph)
    return held


def cache_share(cache_bytes: int, workload: Workload, graph: OpGraph) -> int:
    """Return the bytes of a whole model's KV cache that one GPU holds: heads are shared out, but none is cut."""
    plan = workload.parallelism
    return cache_bytes // (plan.pipeline * min(plan.tensor, graph.cache_heads or plan.tensor))


def _nodes(gpus: int, nodes: int, interconnect: str | None) -> tuple[int, str]:
    """Return over how many nodes the GPUs are, and a sentence where that is assumed."""
    if nodes > 1 or gpus <= MOST_IN_A_NODE:
        return nodes, ""
    nodes = -(-gpus // USUAL_NODE)
    network = interconnect or "a network of 100 Gb/s a node"
    return nodes, f"{gpus} GPUs are taken to be {nodes} nodes on {network}: name a system with --on for its own"


def _rings(workload: Workload, device: Device, copies: int, nodes: int, interconnect: str | None) -> _Rings:
    plan = workload.parallelism
    per_node = -(-workload.gpus // nodes)
    side_by_side = min(plan.tensor, per_node)
    data_nodes = min(nodes, -(-copies * plan.tensor // per_node))
    tensor_nodes = -(-plan.tensor // per_node)
    pipeline_nodes = min(nodes, 2)
    return _Rings(
        ring_of(device, copies, data_nodes, interconnect, sharing=side_by_side),
        ring_of(device, plan.tensor, tensor_nodes, interconnect),
        ring_of(device, 2, pipeline_nodes, interconnect, sharing=side_by_side),
    )


def _data_s(ring: Ring, workload: Workload, graph: OpGraph, microbatches: int) -> float:
    """Return the seconds that the copies of the model exchange in one step."""
    plan = workload.parallelism
    if sees_collectives(graph):
        return exchange_s(ring, graph)
    weights = graph.parameter_bytes / (plan.tensor * plan.pipeline)
    trained = weights if graph.trained_bytes is None else graph.trained_bytes / (plan.tensor * plan.pipeline)
    if plan.sharding is Sharding.NONE:
        return ring.all_reduce_s(trained)
    if plan.sharding is Sharding.OPTIMIZER:
        return 2 * ring.all_gather_s(trained)
    units = max(1, _layers(graph) // (microbatches * plan.pipeline))
    if plan.sharding is Sharding.GRADIENTS:
        return microbatches * 2 * units * ring.all_gather_s(trained / units)
    once_s = 2 * ring.all_gather_s(weights / units) + ring.all_gather_s(trained / units)
    return microbatches * units * once_s


def _tensor_s(ring: Ring, graph: OpGraph, stages: int, *, again: bool) -> float:
    """Return the seconds of a step's all-reduces in tensor parallelism: two a layer and pass."""
    forward = [op for op in graph.ops if op.kind is OpKind.ATTENTION and op.stage is Stage.FORWARD]
    if not forward:
        raise InvalidInput(
            "tensor parallelism divides attention layers, and this model's graph shows none: "
            "leave --tensor-parallel out"
        )
    seconds = sum(ring.all_reduce_s(_bytes_out(op.dims, op.dtype)) * op.count for op in forward)
    return _reduced(graph, again=again) * seconds / stages


def _launched_s(workload: Workload, graph: OpGraph, launches_s: float) -> float:
    """Return the seconds of launching on each GPU of a group, the all-reduces of tensor parallelism included."""
    if workload.parallelism.tensor < 2 or launches_s <= 0:
        return launches_s
    return launches_s + _reduced(graph, again=workload.checkpointing) * _layers(graph) * COLLECTIVE_LAUNCH_S


def _reduced(graph: OpGraph, *, again: bool) -> int:
    """Return how often a layer's activations are reduced in a step: twice in each pass."""
    return 2 * ((2 if graph.is_training else 1) + (1 if graph.is_training and again else 0))


def _activation_bytes(graph: OpGraph) -> float:
    """Return the bytes of one microbatch's activations between two layers."""
    forward = [op for op in graph.ops if op.kind is OpKind.ATTENTION and op.stage is Stage.FORWARD]
    if not forward:
        raise InvalidInput(
            "a pipeline passes activations between attention layers, and this model's graph shows none: "
            "leave --pipeline-parallel out"
        )
    return max(_bytes_out(op.dims, op.dtype) for op in forward)


def _bytes_out(dims: dict[str, int], dtype: str) -> float:
    return float(dims["b"] * dims["h"] * dims["q"] * dims["d"] * BYTES_PER_ELEMENT.get(dtype, 4))


def _layers(graph: OpGraph) -> int:
    """Return how often attention runs forward in a step, over all layers and microbatches."""
    return sum(op.count for op in graph.ops if op.kind is OpKind.ATTENTION and op.stage is Stage.FORWARD)
