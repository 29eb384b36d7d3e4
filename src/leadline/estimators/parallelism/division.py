"""A step divided over the GPUs of a job: computing, communication and exposed time.

The layout is Megatron-LM's: tensor-parallel GPUs are neighbours, then come the data-parallel copies, then the pipeline
stages. Sources: sharding by Rajbhandari et al. 2020 (ZeRO); two all-reduces of activations per layer and pass by
Shoeybi et al. 2019; the pipeline bubble (p − 1)/m of p stages and m microbatches by Narayanan et al. 2021.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpGraph, OpKind, Stage, TracedJob
from leadline.core.hardware import Device
from leadline.core.workload import Phase, Sharding, Workload
from leadline.estimators.parallelism.decoder_work import writes_scores
from leadline.estimators.parallelism.fabric import Fabric, Ring, exchange_s, make_ring, sees_collectives
from leadline.estimators.parallelism.tensor import residual_width


def trained_bytes(graph: OpGraph) -> int:
    """Return the bytes of the weights with a gradient."""
    return graph.parameter_bytes if graph.trained_bytes is None else graph.trained_bytes


def count_layers(graph: OpGraph) -> int:
    """Return how often attention runs forward in a step, over all layers and microbatches."""
    return sum(op.count for op in graph.ops if _attends_forward(op))


def _attends_forward(op: Op) -> bool:
    return op.stage is Stage.FORWARD and (op.kind is OpKind.ATTENTION or writes_scores(op))


def _passed_elements(op: Op, width: int) -> int:
    """Return the elements that an attention layer passes on: those of the residual stream, over the batch.

    Where its width is unknown, they are those of all heads.
    """
    dims = op.dims
    if writes_scores(op):
        return dims["b"] * dims["m"] * dims["k"]
    return dims["b"] * dims["q"] * (width or dims["h"] * dims["d"])


def _activations(graph: OpGraph, purpose: str, option: str) -> list[tuple[float, int]]:
    """Return the bytes that each attention layer passes on and their number; refuse a graph without any."""
    forward = [op for op in graph.ops if _attends_forward(op)]
    if not forward:
        raise InvalidInput(f"{purpose} attention layers, and this model's graph shows none: leave {option} out")
    width = residual_width(graph)
    sizes = (_passed_elements(op, width) for op in forward)
    widths = (BYTES_PER_ELEMENT.get(op.dtype, 4) for op in forward)
    return [(float(size * width), op.count) for size, width, op in zip(sizes, widths, forward, strict=True)]


# Share of an exchange that shows however much computing there is to hide it behind. This and the smooth maximum of
# computing and exchanging come from llm-foundry's training steps (8 to 512 GPUs, sharded in full): 0.31 ± 0.08.
UNHIDDEN = 0.31
COLLECTIVE_LAUNCH_S = 20e-6  # host time to launch one collective: nccl_cpu_launch_overhead in Vidur's profiles
BACKWARD = 2 / 3  # share of a step in which gradients appear, behind which their reduction hides


ONE_NODE = Fabric()


class DividedStep(Frozen):
    """One step on each GPU: seconds, communication by purpose, its exposed part, and idle time.

    Between nodes, ``fastest_s`` is the step on the fastest plausible network with all communication hidden and all ops
    fused into the products, and ``slowest_s`` the step on the slowest one with nothing hidden. Otherwise both are
    ``step_s``.
    """

    step_s: float
    sent_s: dict[str, float]
    exposed_s: float
    idle_s: float
    measured: bool  # True if the generation of every used link was measured
    slowest_bytes_per_s: float
    fastest_s: float
    slowest_s: float
    link_spread: float  # deviation of the logarithm of the exchanges' time
    assumptions: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """Sentences about exposed communication and what it rests on."""
        text = f"{self.exposed_s / self.step_s:.0%} of the step is communication that computing does not hide"
        if self.idle_s:
            text += f", {self.idle_s / self.step_s:.0%} is pipeline bubble"
        if self.measured:
            return [text]
        rate = f"unmeasured links: assuming {self.slowest_bytes_per_s / 1e9:.3g} GB/s one way on the slowest"
        return [text, *self.assumptions, rate]


def divide_step(
    workload: Workload,
    job: TracedJob,
    device: Device,
    whole_s: float,
    *,
    optimizer_s: float = 0.0,
    launches_s: float = 0.0,
    matrix_share: float = 1.0,
    fabric: Fabric = ONE_NODE,
    engine: bool = False,
) -> DividedStep:
    """Divide a step that takes one GPU ``whole_s`` seconds, ``optimizer_s`` of them in the update.

    In tensor parallelism ``whole_s`` is the total of the group's GPUs (``tensor.py`` gives each share). Every GPU
    launches all ops, so each takes at least ``launches_s`` plus the launches of collectives. ``matrix_share`` of the
    computing are products and attention, which no framework fuses away. An ``engine`` of inference has all-reduces of
    its own.

    Raises:
        InvalidInput: the GPUs cannot be divided so, or the graph has no attention layers to divide.
    """
    plan = workload.parallelism
    if plan.context * plan.expert > 1:
        raise InvalidInput(
            "context and expert parallelism are predicted for the training of transformers in 16 or 8 bits"
        )
    training, copies = workload.phase is Phase.TRAINING, plan.copies(workload.gpus)
    if training and plan.sharding is not Sharding.NONE:
        whole_s -= optimizer_s * (1 - 1 / copies)
    stages = plan.pipeline if training else 1  # one forward pass goes through all stages, whoever holds them
    computing_s = max(whole_s / plan.tensor, _launched_s(workload, job.step, launches_s)) / stages
    exchange = partial(_exchange, workload, job, fabric, engine)
    step = exchange(device, computing_s, fabric.island_bytes_per_s)
    if fabric.islands == 1 and not fabric.unknown_link:
        return replace(step, fastest_s=step.step_s, slowest_s=step.step_s, assumptions=fabric.assumptions)
    slower, faster = fabric.link_ends(device)
    fused_s = computing_s * (matrix_share if fabric.islands > 1 else 1.0)
    fast = exchange(faster, fused_s, fabric.high_bytes_per_s)
    slow = exchange(slower, computing_s, fabric.low_bytes_per_s)
    if fabric.islands == 1:
        return replace(step, fastest_s=fast.step_s, slowest_s=slow.step_s, assumptions=fabric.assumptions)
    beyond = f"extrapolating: {fabric.islands} nodes or racks, but the training data are steps on one; wider interval"
    overlap = "the interval covers ops that are fused or not, and communication that is hidden whole or not at all"
    return replace(
        step, fastest_s=fast.fastest_s, slowest_s=slow.slowest_s, assumptions=(*fabric.assumptions, beyond, overlap)
    )


def _exchange(
    workload: Workload, job: TracedJob, fabric: Fabric, engine: bool, device: Device, computing_s: float,
    island_bytes_per_s: float,
) -> DividedStep:  # fmt: skip
    """Add communication and idle time to the seconds of computing, on islands with this network."""
    plan, graph = workload.parallelism, job.step
    copies = plan.copies(workload.gpus)
    data_ring, tensor_ring, pipeline_ring = _rings(workload, device, copies, fabric, island_bytes_per_s)
    training = workload.phase is Phase.TRAINING
    microbatches = max(workload.accumulation, job.loop.accumulation)
    stages = plan.pipeline if training else 1
    sent_s: dict[str, float] = {}
    shown_s = 0.0
    if plan.tensor > 1:
        reduce_s = tensor_ring.one_shot_all_reduce_s if engine else tensor_ring.all_reduce_s
        sent_s["tensor parallelism"] = shown_s = _tensor_s(reduce_s, graph, stages, again=workload.checkpointing)
    bubble = (stages - 1) / microbatches
    idle_s = (computing_s + shown_s) * bubble
    if plan.pipeline > 1:
        activations = _activations(graph, "a pipeline passes activations between", "--pipeline-parallel")
        message = max(size for size, _ in activations) / plan.tensor
        sends = 2 * (microbatches + stages - 1) if training else plan.pipeline - 1
        sent_s["pipeline"] = sends * pipeline_ring.send_s(message)
        shown_s += UNHIDDEN * sent_s["pipeline"]
    if training and copies > 1:
        data_s = _data_s(data_ring, workload, job, microbatches)
        behind_s = computing_s if plan.sharding.gathers else BACKWARD * computing_s / microbatches
        sent_s["data parallelism"] = data_s
        shown_s += (behind_s**4 + data_s**4) ** 0.25 - behind_s + UNHIDDEN * data_s
    used = [ring for ring in (data_ring, tensor_ring) if ring.devices > 1] + [pipeline_ring] * (plan.pipeline > 1)
    slowest = min(ring.bytes_per_s for ring in used)
    measured = all(ring.measured for ring in used)
    step_s, all_s = computing_s + shown_s + idle_s, sum(sent_s.values())
    return DividedStep(
        step_s, sent_s, shown_s, idle_s, measured, slowest,
        fastest_s=max(computing_s * (1 + bubble), all_s), slowest_s=computing_s + all_s + idle_s,
        link_spread=max(ring.spread(large=training) for ring in used),
    )  # fmt: skip


def _rings(
    workload: Workload, device: Device, copies: int, fabric: Fabric, island_bytes_per_s: float
) -> tuple[Ring, Ring, Ring]:
    """Return the groups that exchange: data-parallel copies, tensor-parallel group, pipeline neighbours."""
    plan, islands = workload.parallelism, fabric.islands
    per_island = -(-workload.gpus // islands)
    side_by_side = min(plan.tensor, per_island)
    data_islands = min(islands, -(-copies * plan.tensor // per_island))
    tensor_islands = -(-plan.tensor // per_island)
    ring = partial(make_ring, device, node_bytes_per_s=island_bytes_per_s, network_efficiency=fabric.network_efficiency)
    # Between islands, all GPUs of a stage send at once.
    return (
        ring(copies, data_islands, sharing=side_by_side),
        ring(plan.tensor, tensor_islands),
        ring(2, min(islands, 2), sharing=per_island),
    )


def _data_s(ring: Ring, workload: Workload, job: TracedJob, microbatches: int) -> float:
    plan, graph = workload.parallelism, job.step
    if sees_collectives(graph):
        return exchange_s(ring, graph, job.loop.world_size)
    parts = plan.tensor * plan.pipeline
    weights, trained = graph.parameter_bytes / parts, trained_bytes(graph) / parts
    if plan.sharding is Sharding.NONE:
        return ring.all_reduce_s(trained)
    if plan.sharding is Sharding.OPTIMIZER:
        return 2 * ring.all_gather_s(trained)
    units = max(1, count_layers(graph) // (microbatches * plan.pipeline))
    if plan.sharding is Sharding.GRADIENTS:
        return microbatches * 2 * units * ring.all_gather_s(trained / units)
    once_s = 2 * ring.all_gather_s(weights / units) + ring.all_gather_s(trained / units)
    return microbatches * units * once_s


def _tensor_s(reduce_s: Callable[[float], float], graph: OpGraph, stages: int, *, again: bool) -> float:
    """Return the seconds of a step's all-reduces in tensor parallelism: two a layer and pass."""
    activations = _activations(graph, "tensor parallelism divides", "--tensor-parallel")
    seconds = sum(reduce_s(size) * count for size, count in activations)
    return _reduced(graph, again=again) * seconds / stages


def _launched_s(workload: Workload, graph: OpGraph, launches_s: float) -> float:
    """Return the launch seconds on each GPU of a group, including tensor-parallel all-reduces."""
    if workload.parallelism.tensor < 2 or launches_s <= 0:
        return launches_s
    return launches_s + _reduced(graph, again=workload.checkpointing) * count_layers(graph) * COLLECTIVE_LAUNCH_S


def _reduced(graph: OpGraph, *, again: bool) -> int:
    """Return how often a layer's activations are reduced in a step: twice in each pass."""
    return 2 * ((2 if graph.is_training else 1) + (1 if graph.is_training and again else 0))
