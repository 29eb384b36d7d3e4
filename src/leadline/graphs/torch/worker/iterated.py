"""What the ``for`` loops of the script's own files iterate over, recorded when a loop begins.

The files are compiled so that each iterable that an expression gives passes through ``_record``, and ``type`` tells no
tensor without data from others. Nothing else changes: neither values nor lines.
"""

import ast
import builtins
import gc
import importlib.machinery
import itertools
import operator
import os
import runpy
import sys
import types
import weakref
from typing import Any, Dict, Optional, Tuple

from leadline.graphs.torch.worker.expressions import called_name, gives_elements, yields_forever
from leadline.graphs.torch.worker.libraries import is_own_file

NAME, TYPE = "__leadline_iterated__", "__leadline_type__"
FAKE_TENSORS = "torch._subclasses.fake_tensor"
"""Module of the tensors without data. It is not imported here, as the trace of a JAX script needs no PyTorch."""
COMPILED_OTHERWISE = ("jit", "kernel", "guvectorize", "vectorize", "script")
"""Parts of the names of decorators whose functions are compiled from their byte code or source."""
_begun: Dict[str, Tuple[Any, Optional[int]]] = {}
"""A reference to what a loop goes over, or its length, by file, line and column."""


def record_iterables() -> None:
    """Record what loops go over, in the script and the modules of its own that are loaded from now on."""
    is_own_file(os.devnull)  # loads what it needs: later, it would ask the hook about the files that it is loading
    setattr(builtins, NAME, _record)
    setattr(builtins, TYPE, _type_of)
    read: Any = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, name: str) -> Any:
        path = loader.get_filename(name)
        return _compile(loader.get_data(path), path) if is_own_file(path) else read(loader, name)

    loaders: Any = importlib.machinery.SourceFileLoader
    loaders.get_code = get_code
    runpy.__dict__["compile"] = _compile  # the function that it calls with the source of a script


def recorded(node: Any, frame: Any) -> Tuple[Any, Optional[int]]:
    """Return what the loop over an expression goes over since it last began, and its length; ``None`` if unknown."""
    reference, length = _begun.get(f"{frame.f_code.co_filename}:{node.lineno}:{node.col_offset}", (None, None))
    return reference() if isinstance(reference, weakref.ref) else reference, length


def is_wrapper(node: Any) -> bool:
    """Return whether an expression gives the elements of its first argument, as ``enumerate`` does."""
    is_call = isinstance(node, ast.Call) and gives_elements(called_name(node)) and bool(node.args)
    return is_call and not any(isinstance(each, ast.Starred) for each in node.args)


def _record(iterable: Any, place: str) -> Any:
    try:
        if isinstance(iterable, range):
            _begun[place] = iterable, len(iterable)
        elif type(iterable).__module__ == "builtins" and not isinstance(iterable, types.GeneratorType):
            _begun[place] = None, _length(iterable)
        else:
            _begun[place] = weakref.ref(iterable), None
    except TypeError:  # of a library in C
        _begun[place] = None, None
    return iterable


def _type_of(kind: Any, value: Any) -> Any:
    """Return what ``type(value)`` gives for real: of a tensor without data, ``torch.Tensor``."""
    found = kind(value)
    is_fake = getattr(found, "__module__", "") == FAKE_TENSORS and found.__name__ == "FakeTensor"
    return sys.modules["torch"].Tensor if is_fake else found


def _length(value: Any) -> Optional[int]:
    """Return how many elements a value of Python's own types has or gives, ``None`` if that is unknown."""
    if not isinstance(value, (zip, enumerate)):
        length = operator.length_hint(value, -1)
        return None if length < 0 else length
    parts = [part for held in gc.get_referents(value) for part in (held if isinstance(held, tuple) else (held,))]
    lengths = [_length(part) for part in parts if hasattr(part, "__next__") and not _is_endless(part)]
    return None if None in lengths else min(lengths, default=None)  # type: ignore[type-var]


def _is_endless(iterator: Any) -> bool:
    """Return whether an iterator never ends: one of ``itertools``, or a generator that yields in ``while True``."""
    if isinstance(iterator, types.GeneratorType):
        return yields_forever(iterator.gi_code)
    return isinstance(iterator, (itertools.count, itertools.cycle))


def _compile(source: Any, path: str, mode: str = "exec") -> Any:
    tree: Any = compile(source, path, mode, ast.PyCF_ONLY_AST, dont_inherit=True)
    return compile(_Recorder(path).visit(tree), path, mode, dont_inherit=True)


class _Recorder(ast.NodeTransformer):
    """Let the iterables of loops pass through ``_record``, and the arguments of ``type`` through ``_type_of``."""

    def __init__(self, path: str) -> None:
        self.path = path

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        names = [part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
                 for decorator in node.decorator_list for part in ast.walk(decorator)]  # fmt: skip
        if any(word in name for name in names for word in COMPILED_OTHERWISE):
            return node
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        node.iter = self._recording(node.iter)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1 and not node.keywords:
            call = ast.Call(ast.Name(TYPE, ast.Load()), [node.func, *node.args], [])
            return ast.fix_missing_locations(ast.copy_location(call, node))
        return node

    def _recording(self, node: Any) -> Any:
        """Return an expression that records what is iterated over, within wrappers such as ``enumerate``."""
        if is_wrapper(node):
            places = range(len(node.args)) if called_name(node) == "zip" else range(1)
            node.args = [self._recording(each) if place in places else each for place, each in enumerate(node.args)]
            return node
        if isinstance(node, (ast.Name, ast.Attribute, ast.Constant)):
            return node
        place = ast.Constant(f"{self.path}:{node.lineno}:{node.col_offset}")
        return ast.fix_missing_locations(
            ast.copy_location(ast.Call(ast.Name(NAME, ast.Load()), [node, place], []), node)
        )
