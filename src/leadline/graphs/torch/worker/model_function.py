"""Train or run the model that a function of the user builds, on inputs of given shapes."""

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Any, Dict, List

import torch

from leadline.graphs.torch.worker import fake_tensors, library_models
from leadline.graphs.torch.worker.ops import result_tensors
from leadline.graphs.torch.worker.session import ScriptFailure, StopTrace, TraceSession

MOST_STEPS = 3
"""Limit for a model that allocates more memory in each step."""


def run_model(session: TraceSession, request: Dict[str, Any]) -> None:
    """Build the model and run its steps."""
    device = torch.device(session.policy)
    if request["library"]:
        model, request["inputs"] = library_models.build_library_model(request)
        shapes = " and ".join("x".join(map(str, shape)) for shape, _ in request["inputs"])
        session.note(f"the input of {request['library']}:{request['function']} is {shapes}")
    else:
        model = _build(request)
    model = model.to(device)
    if request["weights"] != "float32":
        model = model.to(getattr(torch, request["weights"]))
    if request["checkpointing"]:
        _enable_checkpointing(session, model)
    if request["phase"] == "inference":
        _infer(model, request, device)
    else:
        _train(session, model, request, device)


def _build(request: Dict[str, Any]) -> torch.nn.Module:
    path, name = request["target"], request["function"]
    sys.path.insert(0, str(Path(path).resolve().parent))
    build = runpy.run_path(path, run_name="leadline_model").get(name)
    if build is None:
        raise ScriptFailure(f"{path} defines no {name!r}: name a function that returns the model")
    model = build if isinstance(build, torch.nn.Module) else build()
    if not isinstance(model, torch.nn.Module):
        raise ScriptFailure(f"{name}() returned {type(model).__name__}: return a torch.nn.Module")
    return model


def _enable_checkpointing(session: TraceSession, model: Any) -> None:
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if enable is not None:
        enable()
        return
    session.note("checkpointing was requested, but the model has no gradient_checkpointing_enable(): traced without")


def _inputs(request: Dict[str, Any], device: torch.device) -> List[torch.Tensor]:
    """Return inputs on the device, copied from the host as a loader's batch is. Floats have the weights' type."""
    tensors = []
    for shape, dtype_name in request["inputs"]:
        dtype = getattr(torch, dtype_name)
        if dtype.is_floating_point and request["weights"] != "float32":
            dtype = getattr(torch, request["weights"])
        tensors.append(fake_tensors.empty_tensor(shape, dtype, torch.device("cpu")).to(device))
    return tensors


def _autocast(request: Dict[str, Any], device: torch.device) -> Any:
    if not request["autocast"]:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, request["autocast"]))


def _infer(model: torch.nn.Module, request: Dict[str, Any], device: torch.device) -> None:
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            with _autocast(request, device):
                model(*_inputs(request, device))


def _train(session: TraceSession, model: torch.nn.Module, request: Dict[str, Any], device: torch.device) -> None:
    """Run optimizer steps until one leaves the held memory unchanged. That is usually the first."""
    model.train()
    optimizer = _optimizer(request["optimizer"], model)
    _make_state(optimizer)
    recorder: Any = session.recorder
    for _ in range(MOST_STEPS):
        held_bytes = recorder.live_bytes
        for _ in range(request["accumulation"]):
            with _autocast(request, device):
                loss = _loss(model(*_inputs(request, device)))
            loss.backward()
            del loss
        _drop_unused_state(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        if recorder.live_bytes == held_bytes:
            break
    raise StopTrace


def _make_state(optimizer: Any) -> None:
    """Let the optimizer make its state from zero gradients, which costs less than a discarded step."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(torch.nn.parameter.is_lazy(p) for p in parameters):
        return
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _drop_unused_state(optimizer: Any) -> None:
    """Drop the state of parameters that the loss does not reach, as a real optimizer never makes it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                optimizer.state.pop(parameter, None)


def _loss(output: Any) -> torch.Tensor:
    """Return a scalar to differentiate: the model's own loss, else the sum of the means of floating outputs."""
    model_loss = getattr(output, "loss", None)
    if isinstance(model_loss, torch.Tensor):
        return model_loss
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    tensors = [t for t in result_tensors(output) if t.is_floating_point()]
    if not tensors:
        raise ScriptFailure(
            "the model's output holds no floating-point tensor: return one that a loss can be made from"
        )
    total = tensors[0].float().mean()
    for tensor in tensors[1:]:
        total = total + tensor.float().mean()
    return total


def _optimizer(name: str, model: torch.nn.Module) -> Any:
    """Return the optimizer of a name. Lion is not in PyTorch; SGD with momentum has the same memory."""
    optim = torch.optim
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ScriptFailure("the model has no trainable parameter: use --phase inference")
    if name in ("sgd", "momentum", "lion"):
        return optim.SGD(parameters, lr=0.01, momentum=0.0 if name == "sgd" else 0.9)
    kinds = {"adam": optim.Adam, "adamw": optim.AdamW, "adagrad": optim.Adagrad, "rmsprop": optim.RMSprop}
    return kinds[name](parameters, lr=0.001)
