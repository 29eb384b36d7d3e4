"""Insert a watcher before each loop of a module's syntax tree without changing line numbers.

``for x in it`` becomes ``for x in (L(it) if L else it)``, and the body of a ``while`` loop begins with ``if L: L()``.
Here ``L`` is a global of the module for this one loop.
"""

from __future__ import annotations

import ast

from .bounds import find_bound

TYPE_CHECKING = False  # typing itself takes a tenth of a short script's start
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

PARTS = ("enumerate", "zip", "tqdm", "track", "islice", "reversed", "iter", "progress_bar", "batched")
"""Calls that iterate over their arguments without knowing their own length."""
COMPILERS = (
    "jit", "njit", "compile", "script", "trace", "vmap", "pmap", "vectorize", "guvectorize", "kernel", "cuda",
    "autotune", "pure_callback", "scan", "while_loop", "fori_loop", "cfunc", "stencil", "function",
)  # fmt: skip
"""Decorators and calls whose functions are not executed line by line by Python."""
UNTOUCHED = ("forward", "call", "__call__", "backward", "setup_context", "jvp", "vjp")
"""Methods of models that compilers take; they contain no training loop."""


def transform(tree: Any, path: str, *, main: bool) -> Tuple[Any, Dict[str, Dict[str, Any]]]:
    """Return the changed tree and name -> facts of each loop; ``main`` adds the call that sets the script's names."""
    watcher = _LoopTransformer(path, _compiled(tree))
    tree = watcher.visit(tree)
    if main:
        position = 1 if ast.get_docstring(tree, clean=False) is not None else 0
        while position < len(tree.body) and getattr(tree.body[position], "module", None) == "__future__":
            position += 1
        call = ast.Expr(ast.Call(ast.Name("__leadline_main__", ast.Load()), [], []))
        tree.body.insert(position, _placed(call, None))
    return tree, watcher.infos


def _compiled(tree: Any) -> List[str]:
    """Return the names of functions that are passed to a compiler."""
    names: List[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) in COMPILERS:
            names.extend(_last_name(argument) for argument in node.args)
    return names


def _last_name(node: Any) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return str(getattr(node, "id", None) or getattr(node, "attr", None) or "")


class _LoopTransformer(ast.NodeTransformer):
    """Walks a module and tracks the current function."""

    def __init__(self, path: str, compiled: List[str]) -> None:
        self.path, self.compiled = path, compiled
        self.infos: Dict[str, Dict[str, Any]] = {}
        self.functions: List[Tuple[str, int]] = []
        self.depth = 0

    def visit_FunctionDef(self, node: Any) -> Any:
        words = [part for decorator in node.decorator_list for part in _words(decorator)]
        # Compilers reject or recompile code that refers to unknown objects.
        if node.name in UNTOUCHED or node.name in self.compiled or any(word in COMPILERS for word in words):
            return node
        first = min([node.lineno, *[decorator.lineno for decorator in node.decorator_list]])
        outer, self.depth = self.depth, 0
        self.functions.append((node.name, first))
        self.generic_visit(node)
        self.functions.pop()
        self.depth = outer
        return node

    def visit_AsyncFunctionDef(self, node: Any) -> Any:
        return node

    def visit_For(self, node: Any) -> Any:
        name, info = self._enter(node, "for", node.iter)
        if info["yields"]:
            node.iter = _choice(name, "sized", node.iter)
            return node
        args = node.iter.args if isinstance(node.iter, ast.Call) else []
        if args and not any(isinstance(argument, ast.Starred) for argument in args):
            sized = _sized(_last_name(node.iter.func), len(args))
            args[:sized] = [_choice(name, "sized", argument) for argument in args[:sized]]
        node.iter = _choice(name, None, node.iter)
        return node

    def visit_While(self, node: Any) -> Any:
        name, info = self._enter(node, "while", node.test)
        if info["yields"]:
            return node
        node.body.insert(0, _statement(name, None, node.body[0]))
        return [_statement(name, "begin", node), node, _statement(name, "end", node)]

    def _enter(self, node: Any, kind: str, head: Any) -> Tuple[str, Dict[str, Any]]:
        """Visit the inside of a loop, and describe the loop as in the source."""
        name = f"__leadline_{len(self.infos)}__"
        text = ast.unparse(head)
        header = f"for {ast.unparse(node.target)} in {text}" if kind == "for" else f"while {text}"
        info = {
            "file": self.path,
            "line": node.lineno,
            "last": node.end_lineno,
            "kind": kind,
            "text": header if len(header) <= 80 else header[:77] + "…",
            "function": self.functions[-1][0] if self.functions else "",
            "made_by": (self.path, self.functions[-1][1]) if self.functions else None,
            "outermost": self.depth == 0,
            "yields": any(_yields(statement) for statement in node.body),
            "bound": find_bound(node),
        }
        self.infos[name] = info
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        return name, info


def _sized(function: str, arguments: int) -> int:
    """Return how many of the first arguments determine the length of the call's result."""
    if function == "islice":
        return 2 if arguments == 2 else 0
    return arguments if function == "zip" else int(function in PARTS)


def _words(decorator: Any) -> List[str]:
    words = [getattr(node, key, None) for node in ast.walk(decorator) for key in ("id", "attr")]
    return [word for word in words if word is not None]


def _yields(node: Any) -> bool:
    """True if the loop body yields or awaits, so that its iterations include foreign time."""
    if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
        return True
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        return False
    return any(_yields(child) for child in ast.iter_child_nodes(node))


def _choice(name: str, method: Optional[str], value: Any) -> Any:
    """Return ``(L(value) if L else value)``, or the same with a method of ``L``."""
    choice = ast.IfExp(ast.Name(name, ast.Load()), ast.Call(_callee(name, method), [value], []), value)
    return _placed(choice, value)


def _statement(name: str, method: Optional[str], at: Any) -> Any:
    """Return ``if L: L()``, or the same with a method of ``L``."""
    call = ast.Expr(ast.Call(_callee(name, method), [], []))
    return _placed(ast.If(ast.Name(name, ast.Load()), [call], []), at)


def _callee(name: str, method: Optional[str]) -> Any:
    callee = ast.Name(name, ast.Load())
    return ast.Attribute(callee, method, ast.Load()) if method else callee


def _placed(tree: Any, at: Optional[Any]) -> Any:
    """Give new nodes the position of an old one."""
    if at is not None:
        ast.copy_location(tree, at)
    # A statement stays at its first character, because the old one follows it.
    if isinstance(at, ast.stmt):
        tree.end_lineno, tree.end_col_offset = at.lineno, at.col_offset
    return ast.fix_missing_locations(tree)
