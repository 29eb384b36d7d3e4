"""Find a model function in a Python file without importing it, and which framework it uses."""

import ast
import symtable
from collections.abc import Iterator
from pathlib import Path

from leadline.core.errors import InvalidInput, UnknownName
from leadline.files.read import read_input
from leadline.graphs.frameworks import JAX, MOST_BYTES


def find_framework(path: Path, name: str) -> str:
    """Return the framework of ``path:name``, ``jax`` or ``torch``.

    A file that creates names at run time (``globals``, ``exec``, ``import *``) is not checked for the name. The
    modules that the function uses decide the framework, else the file's imports; PyTorch if both or neither are used.

    Raises:
        InvalidInput: the file cannot be read, or is not valid Python (with its line).
        UnknownName: the file does not define the name; lists the closest ones.
    """
    content = read_input(path, most=MOST_BYTES)
    try:
        tree = ast.parse(content, str(path))
        module = symtable.symtable(content, str(path), "exec")  # type: ignore[arg-type]  # it takes bytes, too
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two for deep nesting
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        reason = getattr(error, "msg", None) or str(error)
        raise InvalidInput(f"{where} is not valid Python: {reason}; fix it, or name another file") from error
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return _framework(tree, name)
    bound = [symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()]
    if name not in bound and not {"globals", "exec", "setattr", "vars", "__getattr__"}.intersection(_used_names(tree)):
        public = [bound_name for bound_name in bound if not bound_name.startswith("_")]
        fix = "" if public else "it defines nothing; name a file with a function that returns the model"
        raise UnknownName(f"function of {path}", name, public, fix=fix)
    return _framework(tree, name)


def _framework(tree: ast.Module, name: str) -> str:
    imported = dict(_imported_modules(tree))
    body = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if body is not None:
        modules = {imported.get(used, "") for used in _used_names(body)} | set(dict(_imported_modules(body)).values())
        if "torch" in modules or modules & JAX:
            return "torch" if "torch" in modules else "jax"
    packages = set(imported.values())
    return "jax" if packages & JAX and "torch" not in packages else "torch"


def _imported_modules(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that is imported, and the package it comes from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (name.asname or name.name.partition(".")[0], name.name.partition(".")[0]) for name in node.names
            )
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((name.asname or name.name, node.module.partition(".")[0]) for name in node.names)


def _used_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.FunctionDef):
            yield node.name
