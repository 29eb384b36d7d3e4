"""Turn recorded windows into the document that the parent reads (the fields of ``TracedJob``)."""

from typing import Any, Dict, List

from leadline.graphs.torch.worker import distributed
from leadline.graphs.torch.worker.op_costs import describe_op, tensor_specs
from leadline.graphs.torch.worker.recorder import Recorder, TraceWindow
from leadline.graphs.torch.worker.session import TraceSession


def graph_document(
    session: TraceSession, recorder: Recorder, window: TraceWindow, *, stage: str = ""
) -> Dict[str, Any]:
    """Return one window as the fields of ``OpGraph``; ``stage`` overrides the stages of its ops."""
    cache: Dict[Any, Dict[str, Any]] = {}
    ops: List[Dict[str, Any]] = []
    for raw in window.ops:
        signature = (
            raw.func if raw.extra is None else id(raw),
            tuple(spec[:2] + spec[3:] for spec in raw.inputs),
            tuple(spec[:2] + spec[3:] for spec in raw.outputs),
            repr(raw.args),
        )
        known = cache.get(signature)
        if known is None:
            known = cache[signature] = {
                **describe_op(raw),
                "inputs": tensor_specs(raw.inputs),
                "outputs": tensor_specs(raw.outputs),
            }
            if known["kind"] == "communication" and not known["dims"]:
                known["dims"] = distributed.collective_dims(raw, session)
        sources = [place - window.first for place in raw.sources if place >= window.first]
        kind = (
            "optimizer" if raw.stage == "optimizer" and known["kind"] in ("elementwise", "reduction") else known["kind"]
        )
        ops.append({**known, "kind": kind, "stage": stage or raw.stage, "sources": sources})
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
    given_back = {serial: place for place, serial, size in window.events if size < 0}
    stages = [raw.stage for raw in window.ops]
    found = []
    for serial, size in window.held:
        found.append((0, serial, size, recorder.category.get(serial, "other")))
    for place, serial, size in window.events:
        category = recorder.category.get(serial)
        if category is None:
            category = _guess(recorder.made_in.get(serial, ""), given_back.get(serial), window.first, stages)
        found.append((max(0, place - window.first), serial, size, category))
    _add_in_place(found, window)
    return [{"op": op, "storage": serial, "size_bytes": size, "category": c} for op, serial, size, c in found]


def _add_in_place(events: List[Any], window: TraceWindow) -> None:
    """Give back the old sum of a gradient before the new one is taken.

    Autograd adds a second gradient of the same tensor into the memory of the first, unless that is a view, such as the
    transposed gradient of a product's weights (``can_accumulate_inplace`` in PyTorch's input_buffer.cpp); for tensors
    without data it makes a new one and drops the old at once, by which such an addition is known.
    """
    sums = {
        place
        for place, raw in enumerate(window.ops)
        if raw.stage == "backward"
        and str(raw.func) == "aten.add.Tensor"
        and window.first + place not in window.to_views
    }
    for taken, (op, _, size, _) in enumerate(events):
        if op not in sums or size <= 0:
            continue
        for dropped in range(taken + 1, len(events)):
            later, serial, given, category = events[dropped]
            if later > op + 1:
                break
            if later == op + 1 and given == -size:
                del events[dropped]
                events.insert(taken, (op, serial, given, category))
                sums.discard(op)
                break


def _guess(made: str, freed_at: Any, first: int, stages: List[str]) -> str:
    """Call memory that forward takes and a later stage gives back an activation; the rest is temporary."""
    if made not in ("forward", "evaluation"):
        return "temporary"
    if freed_at is None:
        return "activation"
    place = min(max(freed_at - first, 0), len(stages) - 1) if stages else 0
    return "activation" if stages and stages[place] != made else "temporary"
