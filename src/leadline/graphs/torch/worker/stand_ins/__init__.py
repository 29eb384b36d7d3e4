"""Packages for GPUs that cannot be imported here, with the shapes, arithmetic and memory of their kernels."""

import ast
import importlib
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, Iterator, Optional

from leadline.graphs.torch.worker.expressions import parse_file
from leadline.graphs.torch.worker.session import TraceSession

PARTS = {
    "flash_attn": ("flash_attn_interface", "bert_padding"),
    "xformers": ("ops",),
    "apex": ("normalization", "optimizers", "normalization.fused_layer_norm", "amp", "parallel", "parallel.LARC"),
    "bitsandbytes": ("optim", "nn"),
    "mamba_ssm": ("modules", "modules.mamba_simple", "ops", "ops.selective_scan_interface"),
    "causal_conv1d": ("causal_conv1d_interface",),
}
"""Packages and their modules. All modules of a package show the same names."""
READING_MEMORY = ("bitsandbytes",)
"""Packages that can be imported without a GPU, but whose kernels read memory that tensors here have not."""
IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")
BROAD_ERRORS = ("Exception", "BaseException")
UNUSABLE = (ImportError, OSError, RuntimeError, AttributeError)
"""Errors of packages for GPUs on a machine without one: libraries and drivers are missing."""


def install_stand_ins(session: TraceSession) -> None:
    """Replace the packages that are missing or fail to load, unless the script has its own way without them."""
    sys.meta_path.insert(0, _Finder(session))


class _Finder(MetaPathFinder, Loader):
    """Finds the real package first. As a loader, it tries to run it."""

    def __init__(self, session: TraceSession) -> None:
        self.session = session

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        package, _, part = name.partition(".")
        if package not in PARTS:
            return None
        if part:
            is_replaced = getattr(sys.modules[package], "__loader__", None) is self
            return ModuleSpec(name, self, is_package=True) if is_replaced and part in PARTS[package] else None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        real = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if real is None and not self._is_needed(name):
            return None
        spec = ModuleSpec(name, self, loader_state=real, is_package=True)
        if real is not None:
            spec.origin, spec.submodule_search_locations = real.origin, real.submodule_search_locations
            spec.has_location = real.has_location
        return spec

    def _is_needed(self, name: str) -> bool:
        """Return whether a script imports a missing package without a way to go on."""
        for number, frame in enumerate(_importers()):
            if frame is None:
                return False
            if _is_guarded(frame, BROAD_ERRORS if not number else ()):
                self.session.note(f"{name} is not installed here, so the script goes on without it")
                return False
        return True

    def create_module(self, spec: ModuleSpec) -> Any:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        package = name.partition(".")[0]
        spec: Any = module.__spec__
        reason = "not installed here"
        if spec.loader_state is not None and package in READING_MEMORY and self.session.policy == "cuda":
            module.__path__, reason = [], "compiled for a GPU"
        elif spec.loader_state is not None:
            try:
                module.__spec__, module.__loader__ = spec.loader_state, spec.loader_state.loader
                spec.loader_state.loader.exec_module(module)
            except UNUSABLE as error:
                if not self._is_needed(name):
                    raise
                reason = f"not usable here ({type(error).__name__})"
                for part in [other for other in sys.modules if other.startswith(f"{name}.")]:
                    del sys.modules[part]
                module.__path__, module.__loader__, module.__spec__ = [], self, spec
            else:
                return
        content = importlib.import_module(f"{__name__}.{package}")
        vars(module).update({key: value for key, value in vars(content).items() if not key.startswith("__")})
        if name == package:
            self.session.note(f"{name} is {reason}: a stand-in computes its shapes. {content.ASSUMPTION}")
            self.session.low_confidence = True


def _importers() -> Iterator[Any]:
    """Yield the frames that import, innermost first up to the script; ``None`` if one only asks for a package."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if function == "find_spec" and file.endswith(("importlib/util.py", "importlib.util>")):
            yield None
        elif "importlib" not in file and file != __file__:
            yield frame
            if frame.f_globals.get("__name__") == "__main__":
                return
        frame = frame.f_back


def _is_guarded(frame: Any, errors: Any) -> bool:
    """Return whether a frame's current line catches that a package is missing."""
    tree = parse_file(frame.f_code.co_filename)
    line = frame.f_lineno
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Try) and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0):
            kinds = [name for handler in node.handlers for name in _caught(handler)]
            if not {*IMPORT_ERRORS, *errors}.isdisjoint(kinds):
                return True
    return False


def _caught(handler: ast.ExceptHandler) -> Iterator[str]:
    if handler.type is None:
        yield "BaseException"
        return
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    yield from (getattr(kind, "id", "") for kind in kinds)
