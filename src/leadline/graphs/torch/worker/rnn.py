"""Recurrent layers as one op each way, as the vendors' libraries run them, instead of thousands of small ones."""

from typing import Any, Dict, List, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fakes
from leadline.graphs.torch.worker.recorder import Raw
from leadline.graphs.torch.worker.session import Session

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def install(session: Session) -> None:
    """Replace the recurrent layers' entry points for tensors without data."""
    import torch.nn.modules.rnn as layers

    layers.RNNBase.flatten_parameters = lambda _: None  # cuDNN would lay the weights' data side by side: there is none
    for name in GATES:
        replaced = _replacement(session, name, getattr(torch._VF, name))
        setattr(torch._VF, name, replaced)
        setattr(torch, name, replaced)
    for mode, name in (("RNN_TANH", "rnn_tanh"), ("RNN_RELU", "rnn_relu")):
        layers._rnn_impls[mode] = getattr(torch._VF, name)


def _replacement(session: Session, name: str, original: Any) -> Any:
    def layer(*args: Any, **kwargs: Any) -> Any:
        packed = isinstance(args[3], (list, tuple))
        data, states, weights = (args[0], args[2], args[3]) if packed else (args[0], args[1], args[2])
        if not any(isinstance(one, FakeTensor) for one in (data, *weights)):
            return original(*args, **kwargs)
        _, layers, _, train, both = args[4:9] if packed else args[3:8]
        batch_first = False if packed else (len(args) > 8 and bool(args[8]))
        hidden, cell = (states[0], states[1]) if name == "lstm" else (states, None)
        shape = _sizes(data, weights, hidden, layers, both, batch_first, args[1] if packed else None)
        shape["gates"] = GATES[name]
        flat = [data, hidden] + ([cell] if cell is not None else []) + list(weights)
        found = _Layer.apply(session, name, shape, bool(train), cell is not None, *flat)
        if name == "lstm":
            return found[0], found[1], found[2]
        return found[0], found[1]

    return layer


def _sizes(
    data: Any, weights: Any, hidden: Any, layers: int, both: bool, batch_first: bool, batch_sizes: Any
) -> Dict[str, int]:
    if batch_sizes is not None:
        sequence, batch, total = len(batch_sizes), int(batch_sizes[0]), data.shape[0]
    elif data.dim() == 2:
        sequence, batch, total = data.shape[0], 1, data.shape[0]
    else:
        sequence, batch = (data.shape[1], data.shape[0]) if batch_first else (data.shape[0], data.shape[1])
        total = sequence * batch
    return {
        "batch": batch,
        "seq": sequence,
        "input": data.shape[-1],
        "hidden": weights[1].shape[1] if hidden is None else hidden.shape[-1],
        "layers": int(layers),
        "directions": 2 if both else 1,
        "rows": total,
    }


def _flops(shape: Dict[str, int]) -> float:
    """Return multiply-adds × 2 of all gates of all layers over the sequence."""
    width, total = shape["input"], 0.0
    for _ in range(shape["layers"]):
        total += (
            2.0 * shape["rows"] * shape["gates"] * shape["hidden"] * (width + shape["hidden"]) * shape["directions"]
        )
        width = shape["hidden"] * shape["directions"]
    return total


class _Layer(torch.autograd.Function):
    """All layers and steps of one recurrent module."""

    @staticmethod
    def forward(ctx: Any, session: Session, name: str, shape: Any, train: bool, has_cell: bool, *tensors: Any) -> Any:
        data, hidden = tensors[0], tensors[1]
        device = fakes.true_device(data)
        ctx.session, ctx.name, ctx.shape, ctx.device = session, name, shape, device
        ctx.save_for_backward(*tensors)
        width = hidden.shape[-1] * shape["directions"]
        outs = [fakes.empty((*data.shape[:-1], width), data.dtype, device), fakes.like(hidden, device)]
        if has_cell:
            outs.append(fakes.like(tensors[2], device))
        saved = shape["rows"] * shape["hidden"] * (shape["gates"] + 1) * shape["layers"] * shape["directions"]
        ctx.reserve = fakes.empty((saved if train and any(ctx.needs_input_grad) else 0,), data.dtype, device)
        _write(session, name, shape, _flops(shape), tensors, [*outs, ctx.reserve], device)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[5:]
        outs = [fakes.like(t, ctx.device) if need else None for t, need in zip(tensors, needed)]  # noqa: B905 - Python 3.9 has no strict
        given = [g for g in grads if g is not None] + list(tensors) + [ctx.reserve]
        made = [t for t in outs if t is not None]
        _write(ctx.session, ctx.name + "_backward", ctx.shape, 2 * _flops(ctx.shape), given, made, ctx.device)
        ctx.reserve = None
        return (None, None, None, None, None, *outs)


def _write(
    session: Session, name: str, shape: Dict[str, int], flops: float, given: Any, made: List[Any], device: Any
) -> None:
    recorder = session.recorder
    if recorder is None or session.bare or device.type != recorder.policy_type:
        return
    fakes.INSIDE[0] += 1
    try:
        for tensor in made:
            recorder.track(tensor)
        inputs: Tuple[Any, ...] = tuple(recorder._spec(t)[0] for t in given)
        outputs = tuple(recorder._spec(t)[0] for t in made)
        sources = tuple({recorder.producer[spec[2]] for spec in inputs if spec[2] in recorder.producer})
    finally:
        fakes.INSIDE[0] -= 1
    dims = {key: value for key, value in shape.items() if key not in ("rows", "gates")}
    extra = {"kind": "rnn", "dims": dims, "flops": flops, "kernels": shape["layers"] * shape["directions"]}
    recorder.append(Raw("aten." + name, recorder.stage, inputs, outputs, (), sources, extra))
