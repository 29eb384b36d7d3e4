"""Turn recorded windows into the document that the parent process reads (the fields of ``TracedJob``)."""

from typing import Any, Dict, List

from leadline.graphs.torch.worker import distributed
from leadline.graphs.torch.worker.op_costs import describe_op, tensor_specs
from leadline.graphs.torch.worker.recorder import Recorder, TraceWindow
from leadline.graphs.torch.worker.session import TraceSession


def graph_document(
    session: TraceSession, recorder: Recorder, window: TraceWindow, *, stage: str = ""
) -> Dict[str, Any]:
    """Return one window as the fields of ``OpGraph``. ``stage`` overrides the stages of its ops."""
    cache: Dict[Any, Dict[str, Any]] = {}
    ops: List[Dict[str, Any]] = []
    for op in window.ops:
        signature = (
            op.func if op.extra is None else id(op),
            tuple(spec[:2] + spec[3:] for spec in op.inputs),
            tuple(spec[:2] + spec[3:] for spec in op.outputs),
            repr(op.args),
        )
        document = cache.get(signature)
        if document is None:
            document = cache[signature] = {
                **describe_op(op),
                "inputs": tensor_specs(op.inputs),
                "outputs": tensor_specs(op.outputs),
            }
            if document["kind"] == "communication" and not document["dims"]:
                document["dims"] = distributed.collective_dims(op, session)
        sources = [position - window.first for position in op.sources if position >= window.first]
        kind = (
            "optimizer"
            if op.stage == "optimizer" and document["kind"] in ("elementwise", "reduction")
            else document["kind"]
        )
        ops.append({**document, "kind": kind, "stage": stage or op.stage, "sources": sources})
    return {
        "ops": ops,
        "events": _events(recorder, window),
        "parameters": window.parameters,
        "parameter_bytes": window.parameter_bytes,
        "device_type": session.policy,
        "source": "torch",
        "fallbacks": dict(session.fallbacks),
    }


def _events(recorder: Recorder, window: TraceWindow) -> List[Dict[str, Any]]:
    freed_at = {serial: position for position, serial, size in window.events if size < 0}
    stages = [raw.stage for raw in window.ops]
    events = []
    for serial, size in window.held:
        events.append((0, serial, size, recorder.category.get(serial, "other")))
    for position, serial, size in window.events:
        category = recorder.category.get(serial)
        if category is None:
            category = _guess(recorder.made_in.get(serial, ""), freed_at.get(serial), window.first, stages)
        events.append((max(0, position - window.first), serial, size, category))
    _add_in_place(events, window)
    return [{"op": op, "storage": serial, "size_bytes": size, "category": c} for op, serial, size, c in events]


def _add_in_place(events: List[Any], window: TraceWindow) -> None:
    """Move the release of a gradient's old sum before the allocation of the new one.

    Autograd adds a second gradient of the same tensor into the memory of the first, unless that is a view, such as the
    transposed gradient of a product's weights (``can_accumulate_inplace`` in PyTorch's input_buffer.cpp). For tensors
    without data it allocates a new sum and drops the old one at once. Such an addition is recognized by that.
    """
    sums = {
        position
        for position, op in enumerate(window.ops)
        if op.stage == "backward"
        and str(op.func) == "aten.add.Tensor"
        and window.first + position not in window.to_views
    }
    for allocation, (op_position, _, size, _) in enumerate(events):
        if op_position not in sums or size <= 0:
            continue
        for release in range(allocation + 1, len(events)):
            release_position, serial, release_size, category = events[release]
            if release_position > op_position + 1:
                break
            if release_position == op_position + 1 and release_size == -size:
                del events[release]
                events.insert(allocation, (op_position, serial, release_size, category))
                sums.discard(op_position)
                break


def _guess(made_stage: str, freed_at: Any, first: int, stages: List[str]) -> str:
    """Call memory an activation if forward allocates it and a later stage frees it, else temporary."""
    if made_stage not in ("forward", "evaluation"):
        return "temporary"
    if freed_at is None:
        return "activation"
    position = min(max(freed_at - first, 0), len(stages) - 1) if stages else 0
    return "activation" if stages and stages[position] != made_stage else "temporary"
