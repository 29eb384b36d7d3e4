"""Tell by their code which functions of a script train: those are ranks when processes run them."""

import sys
import types
from pathlib import Path
from typing import Any, Iterator, List, Set

from leadline.graphs.torch.worker.libraries import is_user_file

TRAINING_NAMES = {"backward", "init_process_group", "init_device_mesh", "zero_grad", "Trainer"}
"""Names that only code of a rank uses."""


def script_folder() -> str:
    """Return the folder of the script."""
    return str(Path(sys.argv[0]).absolute().parent)


def trains(target: Any) -> bool:
    """Return whether a function of the user, or one that it calls, names what only training uses."""
    folder, visited = script_folder(), set()
    queue = [getattr(target, "func", target), *getattr(target, "args", ())]  # functools.partial
    while queue:
        function = queue.pop()
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is None or code in visited or not is_user_file(code.co_filename, folder):
            continue
        visited.add(code)
        names = set(_names(code))
        if names & TRAINING_NAMES:
            return True
        queue += _callees(function, names)
    return False


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _callees(function: Any, names: Set[str]) -> List[Any]:
    """Return the functions, methods and classes' methods that a function may call by these names."""
    owners: List[Any] = [getattr(function, "__self__", None)]
    global_names = getattr(getattr(function, "__func__", function), "__globals__", {})
    values = [global_names[name] for name in names if name in global_names]
    owners += [value for value in values if isinstance(value, types.ModuleType)]
    values += [getattr(owner, name, None) for owner in owners if owner is not None for name in names]
    classes = [value for value in values if isinstance(value, type)]
    return [*values, *(member for kind in classes for member in vars(kind).values())]
