"""Transform the user's own modules and the script on import, and notice frameworks."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys

from . import frameworks, loops
from .record import STATE
from .transform import transform

TYPE_CHECKING = False  # typing itself takes a tenth of a short script's start
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
PACKAGES = ("site-packages", "dist-packages", "node_modules", ".venv", "venv", "env", "conda", "miniconda3")
SHADOWED = ("ast", "json", "enum", "re", "contextlib", "itertools", "operator", "math", "threading", "copyreg",
            "functools", "collections", "keyword", "reprlib", "types", "weakref")  # fmt: skip
"""Standard modules that the hook loads, and that the script may replace by its own of the same name."""


def install_import_hook(script: str) -> None:
    """Insert the finder before Python's own, and claim the script if there is one."""
    finder = ModuleFinder(script)
    positions = [position for position, entry in enumerate(sys.meta_path) if entry is importlib.machinery.PathFinder]
    sys.meta_path.insert(positions[0] if positions else len(sys.meta_path), finder)
    if script:
        sys.path_hooks.insert(0, finder.hook)
        _unload_shadowed(os.path.dirname(os.path.realpath(script)))


def _unload_shadowed(folder: str) -> None:
    """Unload standard modules that a file in the script's folder replaces."""
    try:
        names = {name.partition(".")[0] for name in os.listdir(folder)}
    except OSError:
        return
    for name in names.intersection(SHADOWED):
        sys.modules.pop(name, None)


class ModuleFinder:
    """Finds the user's modules, and the script as if its path were a folder with a ``__main__``."""

    def __init__(self, script: str) -> None:
        self.script = script
        self.main: Dict[str, Any] = sys.modules["__main__"].__dict__
        self.roots: List[str] = []
        self.claimed = False

    def hook(self, path: str) -> Any:
        """Answer for the script's path only, once (an entry of ``sys.path_hooks``)."""
        if self.claimed or path != self.script:
            raise ImportError(path)
        return _Folder(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module as Python would, with another loader for frameworks and the user's own modules."""
        if not STATE.on:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        # Other finders may have put their own loader here, which must keep working.
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader or not spec.origin:
            return spec
        if name in frameworks.INSTALLERS:
            spec.loader = FrameworkLoader(name, spec.origin)
        elif self.is_own(spec.origin):
            spec.loader = WatchedSourceLoader(name, spec.origin, self)
        return spec

    def claim(self) -> Any:
        """Return the script's spec, and restore the path that Python changed for a folder."""
        self.claimed = True
        sys.path_hooks.remove(self.hook)
        sys.path_importer_cache.pop(self.script, None)
        folder = os.path.dirname(os.path.realpath(self.script))
        if sys.path and sys.path[0] == self.script:
            sys.path[:1] = [] if getattr(sys.flags, "safe_path", False) else [folder]
        self.roots = [folder, os.getcwd()]
        loader = WatchedSourceLoader("__main__", self.script, self)
        return importlib.util.spec_from_file_location("__main__", self.script, loader=loader)

    def is_own(self, path: str) -> bool:
        """True for a source file below the script or the working folder that is in no library."""
        # ``python -m`` has no script whose folder could be a root.
        if not self.roots:
            self.roots = [os.getcwd()]
        path = os.path.abspath(path)
        for root in self.roots:
            if path.startswith(root.rstrip(os.sep) + os.sep):
                parts = path[len(root) :].split(os.sep)
                return not path.startswith(LIBRARY) and not any(part in PACKAGES for part in parts)
        return False


class _Folder:
    """Appears to Python as a folder that only contains the script as its ``__main__``."""

    def __init__(self, finder: ModuleFinder) -> None:
        self.finder = finder

    def find_spec(self, name: str, target: Any = None) -> Any:  # noqa: ARG002 - as Python calls it
        """Answer for ``__main__`` only."""
        return self.finder.claim() if name == "__main__" and not self.finder.claimed else None


class FrameworkLoader(importlib.machinery.SourceFileLoader):
    """Loads a framework as usual and then installs its hooks."""

    def exec_module(self, module: Any) -> None:
        """Execute the module, then call its installer."""
        super().exec_module(module)
        try:
            frameworks.INSTALLERS[module.__name__](module)
        except Exception as error:  # noqa: BLE001 - errors of the hook must not reach the job
            STATE.remark(error, f"{module.__name__} could not be watched")


class WatchedSourceLoader(importlib.machinery.SourceFileLoader):
    """Loads a module of the user from source, with its loops watched."""

    def __init__(self, name: str, path: str, finder: ModuleFinder) -> None:
        super().__init__(name, path)
        self._finder = finder

    def __reduce__(self) -> Any:
        """Pickle as Python's own loader."""
        return importlib.machinery.SourceFileLoader, (self.name, self.path)

    def get_code(self, fullname: str) -> Any:
        """Return the module's code, watched if possible."""
        data = self.get_data(self.path)
        namespace = self._namespace(fullname)
        if namespace is not None:
            try:
                return self._watched(data, namespace)
            except SyntaxError:
                # The plain code raises it again below.
                pass
            except Exception as error:  # noqa: BLE001 - errors of the hook must not reach the job
                STATE.remark(error, f"{os.path.basename(self.path)} is not watched")
        if fullname == "__main__":
            _be_script(self._finder.main, self.path)
        return compile(data, self.path, "exec", dont_inherit=True)

    def _namespace(self, fullname: str) -> Optional[Dict[str, Any]]:
        """Return the globals of the code; ``python -m`` runs its module in those of ``__main__``."""
        if fullname == "__main__":
            return self._finder.main
        if fullname in sys.modules:
            return sys.modules[fullname].__dict__
        if sys.argv[:1] == ["-m"] and not self._finder.claimed:
            self._finder.claimed = True
            return self._finder.main
        return None

    def _watched(self, data: bytes, namespace: Dict[str, Any]) -> Any:
        script = namespace is self._finder.main and self.name == "__main__"
        tree, infos = transform(ast.parse(data, self.path), self.path, main=script)
        code = compile(tree, self.path, "exec", dont_inherit=True)
        loops.place_loops(infos, namespace)
        if script:
            namespace["__leadline_main__"] = lambda: _be_script(namespace, self.path)
        return code


def _be_script(namespace: Dict[str, Any], path: str) -> None:
    """Set the names of ``__main__`` as in a script that is run by its path."""
    namespace.pop("__leadline_main__", None)
    namespace["__spec__"] = namespace["__package__"] = None
    namespace["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
