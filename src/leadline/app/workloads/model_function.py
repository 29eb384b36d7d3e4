"""Look a model function up in its file without running it, so that a misspelt one is answered at once."""

import ast
from collections.abc import Iterator
from pathlib import Path

from leadline.core.documents import explain_read_error
from leadline.core.errors import InvalidInput, UnknownName

JAX = frozenset({"jax", "flax", "optax", "haiku", "equinox", "chex"})
"""Packages whose use tells a JAX function from a PyTorch one."""


def find_framework(path: Path, name: str) -> str:
    """Return the framework of ``path:name``, ``jax`` or ``torch``; refuse a function that cannot be there.

    A file that makes its names as it runs is believed. What the function itself uses decides its framework, else what
    the file imports; where both are there, or neither, it is PyTorch.

    Raises:
        InvalidInput: the file cannot be read, or is not Python (with its line).
        UnknownName: the file gives no such name; names the closest ones.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {explain_read_error(error)}") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        reason = getattr(error, "msg", None) or str(error)
        raise InvalidInput(f"{where} is not Python that can be run: {reason}; mend it, or name another file") from error
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return _framework(tree, name)
    given = list(_given(tree))
    if name not in given and not {"globals", "exec", "setattr", "vars", "__getattr__"}.intersection(_called(tree)):
        known = [one for one in given if not one.startswith("_")]
        fix = "" if known else "it defines nothing; name a file with a function that returns the model"
        raise UnknownName(f"function of {path}", name, known, fix=fix)
    return _framework(tree, name)


def _framework(tree: ast.Module, name: str) -> str:
    imported = dict(_imported(tree))
    body = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if body is not None:
        own = {imported.get(used, "") for used in _called(body)} | set(dict(_imported(body)).values())
        if "torch" in own or own & JAX:
            return "torch" if "torch" in own else "jax"
    packages = set(imported.values())
    return "jax" if packages & JAX and "torch" not in packages else "torch"


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that is imported, and the package it comes from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((one.asname or one.name.partition(".")[0], one.name.partition(".")[0]) for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((one.asname or one.name, node.module.partition(".")[0]) for one in node.names)


def _given(tree: ast.AST) -> Iterator[str]:
    """Yield the names a module binds, those within its ``if`` and ``try`` too, those within its functions not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((one.asname or one.name.partition(".")[0]) for one in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _given(node)


def _called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.FunctionDef):
            yield node.name
