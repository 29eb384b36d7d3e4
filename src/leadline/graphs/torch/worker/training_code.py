"""Tell by their code which functions of a script train: those are ranks when processes run them."""

import functools
import sys
import types
from pathlib import Path
from typing import Any, Iterator, List, Sequence, Set

from leadline.graphs.torch.worker.libraries import is_user_file

TRAINING_NAMES = {"backward", "init_process_group", "init_device_mesh", "zero_grad", "Trainer"}
"""Names that only code of a rank uses."""


def script_folder() -> str:
    """Return the folder of the script."""
    return str(Path(sys.argv[0]).absolute().parent)


def trains(target: Any, *arguments: Any) -> bool:
    """Return whether a function of the user, or one that it calls, names what only training uses.

    It may call its ``arguments``, the elements of lists among them, and their methods.
    """
    folder, visited = script_folder(), set()
    queue = list(_parts([target, *arguments]))
    kinds = [type(part) for part in queue]
    while queue:
        function = queue.pop()
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is None or code in visited or not is_user_file(code.co_filename, folder):
            continue
        visited.add(code)
        names = set(_names(code))
        if names & TRAINING_NAMES:
            return True
        queue += _callees(function, names, kinds)
    return False


def _parts(values: Sequence[Any]) -> Iterator[Any]:
    """Yield values, those that a ``functools.partial`` holds in place of itself, and the first element of a list."""
    for value in values:
        if isinstance(value, functools.partial):
            yield from _parts([value.func, *value.args, *value.keywords.values()])
        elif isinstance(value, (list, tuple)):
            yield from _parts(value[:1])
        else:
            yield value


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _callees(function: Any, names: Set[str], kinds: Sequence[type]) -> List[Any]:
    """Return the functions, the methods, also of other ``kinds``, and those of classes that these names may call."""
    owners: List[Any] = [getattr(function, "__self__", None), *kinds]
    global_names = getattr(getattr(function, "__func__", function), "__globals__", {})
    values = [global_names[name] for name in names if name in global_names]
    owners += [value for value in values if isinstance(value, types.ModuleType)]
    values += [getattr(owner, name, None) for owner in owners if owner is not None for name in names]
    classes = [value for value in values if isinstance(value, type)]
    return [*values, *(member for kind in classes for member in vars(kind).values())]
