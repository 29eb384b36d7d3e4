"""The compiler of PyTorch, which takes a second to import and is loaded only if something needs it.

Fake tensors read a setting of ``torch._dynamo``, and optimizers exclude themselves from compilation. That alone would
load it in every trace. A placeholder answers these two, and loads the real package otherwise.
"""

import importlib
import importlib.util
import sys
import types
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from typing import Any, Optional

import torch

DYNAMO = "torch._dynamo"
DYNAMO_LIGHT_PART = f"{DYNAMO}.config"
"""It loads without the whole package."""


class _Placeholder(types.ModuleType):
    """Placeholder of the package. Nothing is compiled, so its functions change nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(load_compiler(), name)

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        return function if function is not None else lambda function: function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing, as there is no graph to break."""

    @staticmethod
    def is_compiling() -> bool:
        return False


class _Finder(Loader):
    """Loads the whole package before any of its parts but the light ones. As a loader, it returns loaded parts."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if not name.startswith(DYNAMO + ".") or name == DYNAMO_LIGHT_PART:
            return None
        load_compiler()
        return ModuleSpec(name, self) if name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return sys.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Do nothing, as the module has run."""


_finder = _Finder()


def postpone_compiler() -> None:
    """Put the placeholder in the package's place, unless it is loaded already or this torch has none."""
    spec = None if DYNAMO in sys.modules else importlib.util.find_spec(DYNAMO)
    if spec is None:
        return
    placeholder = _Placeholder(DYNAMO)
    placeholder.__path__ = list(spec.submodule_search_locations or ())
    placeholder.__spec__ = spec
    sys.modules[DYNAMO] = placeholder
    torch._dynamo = placeholder
    sys.meta_path.insert(0, _finder)


def load_compiler() -> Any:
    """Return the real package, and load it if it is not loaded."""
    if not isinstance(sys.modules.get(DYNAMO), _Placeholder):
        return importlib.import_module(DYNAMO)
    del sys.modules[DYNAMO]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _finder]
    real = importlib.import_module(DYNAMO)
    if DYNAMO_LIGHT_PART in sys.modules:  # Python makes a part an attribute only where it loads the part
        real.__dict__["config"] = sys.modules[DYNAMO_LIGHT_PART]
    torch._dynamo = real
    return real
