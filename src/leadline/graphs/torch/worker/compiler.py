"""Leave PyTorch's compiler unloaded until something of it is really used.

Fake tensors read a setting of ``torch._dynamo`` and optimizers tell it to stay away. That alone would load it: a second
of every trace. In its place stands a package that answers those two, and gives way to the real one as soon as it is
asked for anything else.
"""

import importlib
import importlib.util
import sys
import types
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from typing import Any, Optional

import torch

NAME = "torch._dynamo"
LIGHT = (f"{NAME}.config",)
"""Parts that load without the rest."""


class _Stand(types.ModuleType):
    """Stands for the package: nothing is compiled, so nothing needs to be kept from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(load(), name)

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        """Return the function as it is."""
        return function if function is not None else lambda function: function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing: there is no graph to break."""

    @staticmethod
    def is_compiling() -> bool:
        """Say that nothing is compiled."""
        return False


class _Finder:
    """Loads the whole package before any of its parts but the light ones."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Return how to give out a part that the whole package has just loaded; ``None`` for all other modules."""
        if not name.startswith(NAME + ".") or name in LIGHT:
            return None
        load()
        return ModuleSpec(name, _Loaded()) if name in sys.modules else None


class _Loaded(Loader):
    """Gives out a module that is there already."""

    def create_module(self, spec: ModuleSpec) -> Any:
        """Return the module as it is."""
        return sys.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Do nothing: it has run."""


_finder = _Finder()


def postpone() -> None:
    """Put the stand in the package's place, unless the package is loaded already or this torch has none."""
    spec = None if NAME in sys.modules else importlib.util.find_spec(NAME)
    if spec is None:
        return
    stand = _Stand(NAME)
    stand.__path__ = list(spec.submodule_search_locations or ())
    stand.__spec__ = spec
    sys.modules[NAME] = stand
    torch._dynamo = stand
    sys.meta_path.insert(0, _finder)


def load() -> Any:
    """Return the real package, loaded now if it is not yet."""
    if not isinstance(sys.modules.get(NAME), _Stand):
        return importlib.import_module(NAME)
    del sys.modules[NAME]
    sys.meta_path[:] = [one for one in sys.meta_path if one is not _finder]
    real = importlib.import_module(NAME)
    torch._dynamo = real
    return real
