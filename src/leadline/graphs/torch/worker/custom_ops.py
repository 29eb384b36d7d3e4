"""Operators that a script defines or loads: they run by their shape rule, by their Python function, or are refused."""

import sys
from typing import Any, Callable, Dict, FrozenSet, Optional

import torch

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.session import ScriptFailure, TraceSession

BUILT_IN: FrozenSet[str] = frozenset(
    {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}
    | {"c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "_dtensor", "symm_mem"}
    | {"torchaudio", "torchvision", "leadline"}
)
"""Namespaces of PyTorch's operators. Some are defined late."""
REGISTER = (
    "give it a shape rule (torch.library.custom_op and register_fake), or trace a variant that uses PyTorch's ops"
)


def is_custom(func: Any) -> bool:
    """Return whether an op is one that PyTorch does not define."""
    if func.namespace in BUILT_IN:
        return False
    definition = _definitions().get(func._schema.name)
    return definition is None or not definition._init_fn.__module__.startswith("torch.")


def run_custom(recorder: Any, func: Any, args: Any, kwargs: Dict[str, Any], run: Callable[[], Any]) -> Any:
    """Return the result of a custom op and whether its own ops were recorded. ``run`` applies its shape rule.

    The Python function of an op without a rule runs on tensors without data, as the script does.
    """
    body = _python_function(func)
    try:
        if body is None:
            out = run()
            note_unknown(recorder.session, f"the operator {func._overloadpacket}")
            return out, False
        depth, fake_tensors.NESTING[0] = fake_tensors.NESTING[0], 0
        try:
            with recorder, torch.no_grad():
                return body(*args, **kwargs), True
        finally:
            fake_tensors.NESTING[0] = depth
    except ScriptFailure:
        raise
    except Exception as error:  # the function is the user's
        fails = "" if body is None else f", and its Python function fails ({type(error).__name__})"
        raise ScriptFailure(f"the operator {func._schema.name} has no shape rule{fails}: {REGISTER}") from error


def note_unknown(session: TraceSession, what: str, *, multiplies: bool = False) -> None:
    """Note that the arithmetic of a kernel is unknown; ``multiplies``: it has products of matrices."""
    lacks = "; its matrix products are not counted" if multiplies else ""
    session.note(f"{what} is assumed to read and write its arguments once: its arithmetic is unknown{lacks}")
    session.low_confidence = True


def _definitions() -> Any:
    """Return the operators defined by ``torch.library.custom_op``, by name; none before PyTorch 2.4."""
    return getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {})


def _python_function(func: Any) -> Optional[Callable[..., Any]]:
    """Return the function of an operator that has results and no shape rule."""
    definition = _definitions().get(func._schema.name)
    if definition is None or definition._abstract_fn is not None or not func._schema.returns:
        return None
    function: Callable[..., Any] = definition._init_fn
    return function
