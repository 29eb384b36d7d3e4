"""Methods of a tensor without data that need data, and modules that hold such tensors."""

import copy
import functools
import sys
import weakref
from typing import Any, Dict, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.conditions import let_checks_hold
from leadline.graphs.torch.worker.keras_fit import makes_state
from leadline.graphs.torch.worker.session import TraceSession, call_after

_tensor_data = torch.Tensor.data


def install_tensor_methods(session: TraceSession) -> None:
    """Give tensors without data the methods that need data, and make the parameters of modules such tensors."""
    _replace_methods(session)
    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, _construct_on_host(getattr(torch, name)))
    torch.Tensor.__new__ = _construct_from_values(torch.Tensor.__new__)
    _make_fake_parameters(session)
    if not session.calculates:
        torch.nn.Module._apply = _apply
    as_subclass = torch.Tensor.as_subclass
    # A tensor without data cannot also be of a subclass, such as MONAI's tensors with the origin of an image.
    torch.Tensor.as_subclass = lambda tensor, cls: (
        tensor if isinstance(tensor, FakeTensor) else as_subclass(tensor, cls)
    )
    torch.Tensor.data = property(_tensor_data.__get__, _set_data)
    if not session.with_values:
        _skip_initialisation()
    _assume_finite()
    torch.istft = torch.Tensor.istft = let_checks_hold(torch.istft)
    torch.ctc_loss = _with_numbers(torch.ctc_loss)
    torch.distributions.Distribution.set_default_validate_args(False)
    if hasattr(torch._C, "_set_only_lift_cpu_tensors"):  # since 2.4
        torch._C._set_only_lift_cpu_tensors(True)
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([_restore])


def _replace_methods(session: TraceSession) -> None:
    def host(tensor: Any) -> torch.Tensor:
        copied = fake_tensors.host_copy(tensor)
        # Of a tensor too large to keep, only the shape decides what a script can do with it.
        return torch.zeros(copied.shape, dtype=copied.dtype) if isinstance(copied, FakeTensor) else copied

    def numpy(tensor: Any, *, force: bool = False) -> Any:
        values = host(tensor).numpy()
        if session.policy == "cpu" and isinstance(values.base, torch.Tensor):
            values.base.__dict__["_viewed"] = tensor  # on the CPU an array is a view, which keeps the tensor's memory
        return values

    def array(tensor: Any, dtype: Any = None, copy: Any = None) -> Any:
        values = host(tensor).numpy()
        return values if dtype is None else values.astype(dtype)

    def text(tensor: Any, **_: Any) -> str:
        return f"tensor(shape={tuple(tensor.shape)}, device='{tensor.device}', dtype={tensor.dtype})"

    cast = torch.Tensor.type

    def as_type(tensor: Any, dtype: Any = None, **options: Any) -> Any:
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            dtype = getattr(torch.cuda, dtype.rpartition(".")[2])
        if isinstance(dtype, type) and dtype.__module__ != "torch" and hasattr(dtype, "dtype"):
            return tensor.to("cuda", dtype.dtype)
        return cast(tensor) if dtype is None else cast(tensor, dtype, **options)

    methods = {
        "numpy": numpy,
        "__array__": array,
        "tolist": lambda tensor: host(tensor).tolist(),
        "__repr__": text,
        "__str__": text,
        "__format__": lambda tensor, spec: format(tensor.item(), spec) if tensor.dim() == 0 else text(tensor),
        "__deepcopy__": _deepcopy,
        "data_ptr": lambda tensor: tensor.untyped_storage()._cdata,
        "get_device": lambda tensor: 0 if tensor.is_cuda else -1,
        "is_pinned": lambda tensor, *_: False,
        "__reduce_ex__": _reduce,
        "share_memory_": lambda tensor: tensor,
        "__dlpack__": lambda tensor, **_: host(tensor).__dlpack__(),
        "__dlpack_device__": lambda tensor: host(tensor).__dlpack_device__(),
    }
    for name, method in methods.items():
        setattr(FakeTensor, name, method)
    torch.Tensor.type = as_type
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    torch.Tensor.record_stream = lambda tensor, *_: None


def _construct_on_host(original: Any) -> Any:
    """Wrap a constructor from Python values: it runs on the host and copies to the simulated GPU."""

    def construct(*args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
        if device is None:
            context = torch._GLOBAL_DEVICE_CONTEXT  # since 2.3 an object for each thread
            device = getattr(getattr(context, "device_context", context), "device", None)
        device = fake_tensors.map_device(device)
        args = tuple(map(fake_tensors.with_values, args))
        if not isinstance(device, torch.device) or device.type != fake_tensors.backend():
            tensor = original(*args, device=device, **kwargs)
        elif isinstance(args[0], FakeTensor):
            tensor = args[0].to(device, kwargs.get("dtype"))
        else:
            tensor = original(*args, device="cpu", **kwargs).to(device)
        return tensor.requires_grad_() if requires_grad else tensor

    return construct


def _construct_from_values(original: Any) -> Any:
    """Let ``torch.Tensor`` take a list of tensors of one element."""

    @functools.wraps(original)
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.Tensor and args and isinstance(args[0], (list, tuple)):
            args = (fake_tensors.with_values(args[0]), *args[1:])
        return original(cls, *args, **kwargs)

    return new


def _with_numbers(original: Any) -> Any:
    """Give a CTC loss known lengths as numbers, as PyTorch itself reads them from the host."""

    @functools.wraps(original)
    def loss(scores: Any, targets: Any, times: Any, lengths: Any, *args: Any, **options: Any) -> Any:
        known = [
            fake_tensors.known_value(each) if isinstance(each, torch.Tensor) else each for each in (times, lengths)
        ]
        if all(each is not None for each in known):
            times, lengths = (each.tolist() if isinstance(each, torch.Tensor) else each for each in known)
        return original(scores, targets, times, lengths, *args, **options)

    return loss


def _reduce(tensor: Any, _: Any) -> Any:
    weight = tensor.requires_grad if tensor.__dict__.get("_is_param") else None
    return _restore, (tuple(tensor.shape), tensor.dtype, tensor.is_cuda, weight)


def _restore(shape: Any, dtype: Any, was_on_gpu: bool = False, weight: Optional[bool] = None) -> torch.Tensor:
    """Return the content of a tensor without data that is loaded from a file, on the host."""
    tensor = torch.zeros(shape, dtype=dtype)
    if weight is not None:
        tensor = torch.nn.Parameter(tensor, weight)
    tensor.__dict__["_was_on_gpu"] = was_on_gpu
    return tensor


def _deepcopy(tensor: Any, memo: Dict[int, Any]) -> Any:
    if memo.get(id(tensor)) is not None:
        return memo[id(tensor)]
    result = tensor.detach().clone()
    if tensor.__dict__.get("_is_param"):
        result = torch.nn.Parameter(result, tensor.requires_grad)
    else:
        result.requires_grad_(tensor.requires_grad)
    if tensor.is_leaf and tensor.grad is not None:
        result.grad = copy.deepcopy(tensor.grad, memo)
    memo[id(tensor)] = result
    return result


def _make_fake_parameters(session: TraceSession) -> None:
    """Turn the data of every new parameter into a tensor without data, and track the parameters."""
    original = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        is_simulated = cls is torch.nn.Parameter and not session.calculates
        if is_simulated and type(data) in (torch.Tensor, torch.nn.Parameter):
            values, data = data.detach(), fake_tensors.empty_like(data.detach(), torch.device("cpu"))
            session.recorder.give_values(data, values)
        parameter = original(cls, data, requires_grad)
        category = "optimizer-state" if makes_state(sys._getframe(1)) else "parameter"
        if category == "parameter":
            session.recorder.parameters.append(weakref.ref(parameter))
        if isinstance(parameter, FakeTensor) or session.calculates:
            session.recorder.track(parameter, category)
            session.recorder.mark(parameter, category)
        return parameter

    torch.nn.Parameter.__new__ = new
    # Before 2.3, each parameter that is a subclass of Tensor counts as one without a shape yet, too.
    kinds: Any = type(torch.nn.Parameter)
    check = kinds.__mro__[1].__instancecheck__
    kinds.__instancecheck__ = lambda kind, instance: (
        check(kind, instance)
        or (kind is torch.nn.Parameter and isinstance(instance, torch.Tensor) and getattr(instance, "_is_param", False))
    )


def _apply(module: Any, fn: Any, recurse: bool = True) -> Any:
    """Convert a module as ``Module._apply`` does, but keep the parameter objects that optimizers hold."""
    if recurse:
        for child in module.children():
            child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            converted = fn(parameter)
        if converted is parameter or _is_unchanged(converted, parameter):
            continue
        replacement = torch.nn.Parameter(converted.detach(), parameter.requires_grad)
        if parameter.grad is not None:
            with torch.no_grad():
                replacement.grad = fn(parameter.grad)
        if not _swap(parameter, replacement):
            # Modules that share a weight go on sharing it.
            module._parameters[name] = _replacements.setdefault(id(parameter), (replacement, parameter))[0]
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


_replacements: Dict[int, Tuple[Any, Any]] = {}
"""Parameters by the identity of those that they replace, which stay alive for it."""


def _set_data(tensor: Any, value: Any) -> None:
    """Assign ``tensor.data`` as PyTorch does, and also from the host to the simulated device, which PyTorch refuses."""
    if isinstance(tensor, FakeTensor) and not isinstance(value, FakeTensor):
        values, value = value.detach(), fake_tensors.empty_like(value.detach())
        fake_tensors.remember_value(value, values)
    try:
        _tensor_data.__set__(tensor, value)
    except RuntimeError:
        replacement = value.detach()
        if isinstance(tensor, torch.nn.Parameter):
            replacement = torch.nn.Parameter(replacement, tensor.requires_grad)
        if not _swap(tensor, replacement):
            raise
    else:
        if isinstance(tensor, FakeTensor) and isinstance(value, FakeTensor):
            tensor.fake_device = value.fake_device  # where `cuda` is simulated itself, PyTorch sees no difference


def _swap(tensor: Any, replacement: Any) -> bool:
    """Swap the content of two tensor objects. False if a graph or a wrapper still needs the old one."""
    swap = getattr(torch._C, "_swap_tensor_impl", None)
    kinds = {torch.Tensor, torch.nn.Parameter, FakeTensor}
    if swap is None or not {type(tensor), type(replacement)} <= kinds:
        return False
    try:
        swap(tensor, replacement)
    except RuntimeError:
        return False
    tensor.__class__, replacement.__class__ = replacement.__class__, tensor.__class__
    tensor.__dict__, replacement.__dict__ = replacement.__dict__, tensor.__dict__
    return True


def _is_unchanged(before: Any, after: Any) -> bool:
    """Return whether a conversion changed nothing, as ``.cuda()`` on a module that is on the GPU."""
    is_same_form = (before.dtype, before.shape, before.stride()) == (after.dtype, after.shape, after.stride())
    return is_same_form and before.untyped_storage()._cdata == after.untyped_storage()._cdata


def _assume_finite() -> None:
    """Let every number be finite, so that scripts which stop at a diverged loss go on."""
    for name, truth in (("isfinite", True), ("isnan", False), ("isinf", False)):
        call_after(torch, name, functools.partial(_mark_truth, truth))
        setattr(torch.Tensor, name, getattr(torch, name))


def _mark_truth(truth: bool, result: Any, *_: Any) -> None:
    if isinstance(result, FakeTensor):
        result.__dict__["_truth"] = truth


def _skip_initialisation() -> None:
    """Skip ``torch.nn.init`` for tensors without data: some initialisers draw until the values fit."""
    init = torch.nn.init
    for name in dir(init):
        initialiser = getattr(init, name)
        if name.endswith("_") and not name.startswith("_") and callable(initialiser):
            setattr(init, name, _unless_fake(initialiser))


def _unless_fake(initialiser: Any) -> Any:
    @functools.wraps(initialiser)
    def initialise(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        local = getattr(tensor, "_local_tensor", tensor)
        return tensor if isinstance(local, FakeTensor) else initialiser(tensor, *args, **kwargs)

    return initialise
