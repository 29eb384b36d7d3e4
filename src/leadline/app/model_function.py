"""Look a model function up in its file without running it, so that a misspelt one is answered at once."""

import ast
from collections.abc import Iterator
from pathlib import Path

from leadline.core.documents import why_unread
from leadline.core.errors import InvalidInput, UnknownName


def require_function(path: Path, name: str) -> None:
    """Refuse a ``path:name`` that cannot be there; a file that makes its names as it runs is believed.

    Raises:
        InvalidInput: the file cannot be read, or is not Python (with its line).
        UnknownName: the file gives no such name; names the closest ones.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {why_unread(error)}") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        reason = getattr(error, "msg", None) or str(error)
        raise InvalidInput(f"{where} is not Python that can be run: {reason}; mend it, or name another file") from error
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return
    given = list(_given(tree))
    if name not in given and not {"globals", "exec", "setattr", "vars", "__getattr__"}.intersection(_called(tree)):
        known = [one for one in given if not one.startswith("_")]
        fix = "" if known else "it defines nothing; name a file with a function that returns the model"
        raise UnknownName(f"function of {path}", name, known, fix=fix)


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
