"""Change modules once a script imports them."""

import importlib.abc
import importlib.machinery
import sys
from typing import Any, Callable, Dict, Optional

_hooks: Dict[str, Callable[[Any], None]] = {}


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Call ``change(module)`` once a module is loaded, now if it is."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    if not _hooks:
        sys.meta_path.insert(0, _ImportHook())
    _hooks[name] = change


class _ImportHook(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        if name not in _hooks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        loader: Any = spec.loader if spec else None
        if loader is not None:
            execute, change = loader.exec_module, _hooks.pop(name)

            def run(module: Any) -> None:
                execute(module)
                change(module)

            loader.exec_module = run
        return spec
