"""What a script may ask of a tensor that has no data, and how modules hold such tensors."""

import copy
import weakref
from typing import Any, Dict

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import assumed_values, fake_tensors
from leadline.graphs.torch.worker.session import TraceSession

_own_data = torch.Tensor.data


def install_tensor_methods(session: TraceSession) -> None:
    """Give tensors without data the methods that need data, and make parameters of modules such tensors."""
    _answer_values(session)
    _own_parameters(session)
    torch.nn.Module._apply = _apply
    torch.Tensor.data = property(_own_data.__get__, _set_data)
    _skip_initialisation()
    _assume_finite()
    torch.distributions.Distribution.set_default_validate_args(False)
    torch._C._set_only_lift_cpu_tensors(True)
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([_revived])


def _answer_values(session: TraceSession) -> None:
    def host(tensor: Any) -> torch.Tensor:
        return _plain(assumed_values.host_copy(tensor))

    def numpy(tensor: Any, *, force: bool = False) -> Any:
        found = host(tensor).numpy()
        if session.policy == "cpu" and isinstance(found.base, torch.Tensor):
            found.base.__dict__["_viewed"] = tensor  # an array is a view there: it keeps the tensor's memory
        return found

    def array(tensor: Any, dtype: Any = None, copy: Any = None) -> Any:
        found = host(tensor).numpy()
        return found if dtype is None else found.astype(dtype)

    def text(tensor: Any) -> str:
        return f"tensor(shape={tuple(tensor.shape)}, device='{tensor.device}', dtype={tensor.dtype})"

    answers = {
        "numpy": numpy,
        "__array__": array,
        "tolist": lambda tensor: host(tensor).tolist(),
        "__repr__": lambda tensor, **_: text(tensor),
        "__str__": text,
        "__format__": lambda tensor, spec: format(tensor.item(), spec) if tensor.dim() == 0 else text(tensor),
        "__deepcopy__": _deepcopy,
        "data_ptr": lambda tensor: tensor.untyped_storage()._cdata,
        "get_device": lambda tensor: 0 if tensor.is_cuda else -1,
        "is_pinned": lambda tensor, *_: False,
        "__reduce_ex__": lambda tensor, _: (_revived, (tuple(tensor.shape), tensor.dtype)),
        "share_memory_": lambda tensor: tensor,
        "__dlpack__": lambda tensor, **_: host(tensor).__dlpack__(),
        "__dlpack_device__": lambda tensor: host(tensor).__dlpack_device__(),
    }
    for name, answer in answers.items():
        setattr(FakeTensor, name, answer)
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    torch.Tensor.record_stream = lambda tensor, *_: None


def _revived(shape: Any, dtype: Any) -> torch.Tensor:
    """Return what a tensor without data is when a file it was saved in is read again."""
    return torch.zeros(shape, dtype=dtype)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return data even for a tensor too large to keep: the shape decides what a script can do with it."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if isinstance(tensor, FakeTensor) else tensor


def _deepcopy(tensor: Any, memo: Dict[int, Any]) -> Any:
    known = memo.get(id(tensor))
    if known is not None:
        return known
    made = tensor.detach().clone()
    if tensor.__dict__.get("_is_param"):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    else:
        made.requires_grad_(tensor.requires_grad)
    if tensor.is_leaf and tensor.grad is not None:
        made.grad = copy.deepcopy(tensor.grad, memo)
    memo[id(tensor)] = made
    return made


def _own_parameters(session: TraceSession) -> None:
    """Turn the data of every new parameter into a tensor without data, and keep count of parameters."""
    own = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if cls is torch.nn.Parameter and type(data) in (torch.Tensor, torch.nn.Parameter):
            data = fake_tensors.empty_like(data.detach(), torch.device("cpu"))
        made = own(cls, data, requires_grad)
        if session.recorder is not None:
            session.recorder.parameters.append(weakref.ref(made))
            if isinstance(made, FakeTensor) and not session.bare:
                session.recorder.track(made, "parameter")
                session.recorder.mark(made, "parameter")
        return made

    torch.nn.Parameter.__new__ = new


def _apply(module: Any, fn: Any, recurse: bool = True) -> Any:
    """Do what ``Module._apply`` does: parameters stay the objects they were, for optimizers and ties to hold on to."""
    if recurse:
        for child in module.children():
            child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            found = fn(parameter)
        if found is parameter or _same(found, parameter):
            continue
        made = torch.nn.Parameter(found.detach(), parameter.requires_grad)
        if parameter.grad is not None:
            with torch.no_grad():
                made.grad = fn(parameter.grad)
        if not _become(parameter, made):
            module._parameters[name] = made
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def _set_data(tensor: Any, content: Any) -> None:
    """Do what ``tensor.data = content`` does, from the host to the pretended device too, where PyTorch sees no kin."""
    try:
        _own_data.__set__(tensor, content)
    except RuntimeError:
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        detached = content.detach()
        made = torch.nn.Parameter(detached, tensor.requires_grad) if is_parameter else detached
        if not _become(tensor, made):
            raise


def _become(tensor: Any, other: Any) -> bool:
    """Exchange what two tensor objects are; false where a graph or a wrapper still needs the one there was."""
    swap = getattr(torch._C, "_swap_tensor_impl", None)
    kinds = {torch.Tensor, torch.nn.Parameter, FakeTensor}
    if swap is None or not {type(tensor), type(other)} <= kinds:
        return False
    try:
        swap(tensor, other)
    except RuntimeError:
        return False
    tensor.__class__, other.__class__ = other.__class__, tensor.__class__
    tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__
    return True


def _same(one: Any, other: Any) -> bool:
    """Whether a conversion changed nothing (``.cuda()`` on a module that is there already)."""
    return bool(
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.untyped_storage()._cdata == other.untyped_storage()._cdata
        and one.stride() == other.stride()
    )


def _assume_finite() -> None:
    """Let ``isfinite`` be true, so that scripts which guard against a diverged loss go on."""
    own = torch.isfinite

    def isfinite(tensor: Any) -> Any:
        found = own(tensor)
        if isinstance(found, FakeTensor):
            found.__dict__["_truth"] = True
        return found

    torch.isfinite = torch.Tensor.isfinite = isfinite


def _skip_initialisation() -> None:
    """Leave tensors without data as they are in ``torch.nn.init``: some of it draws until the values suit."""
    init = torch.nn.init
    for name in dir(init):
        own = getattr(init, name)
        if name.endswith("_") and not name.startswith("_") and callable(own):
            setattr(init, name, _unless_fake(own))


def _unless_fake(own: Any) -> Any:
    def initialise(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        local = getattr(tensor, "_local_tensor", tensor)
        return tensor if isinstance(local, FakeTensor) else own(tensor, *args, **kwargs)

    initialise.__name__ = own.__name__
    return initialise
