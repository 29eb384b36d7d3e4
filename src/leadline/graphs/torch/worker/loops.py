"""Read the variables of running functions without keeping alive what they hold."""

import ast
import inspect
import linecache
import math
import os
import sys
import sysconfig
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple


def read_locals(frame: Any) -> Dict[str, Any]:
    """Return the local variables of a frame.

    Before Python 3.13 a function's ``f_locals`` is a copy that the frame keeps, and with it every tensor a variable
    held when it was last read; the copy is emptied here, so that memory is given back when the script lets go of it.
    """
    kept = frame.f_locals
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return dict(kept)
    names = dict(kept)
    kept.clear()
    return names


HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
WRAPPERS = ("enumerate", "tqdm", "trange", "track", "islice", "zip", "iter")
FUNCTIONS: Dict[str, Any] = {
    "len": len,
    "int": int,
    "float": float,
    "round": round,
    "min": min,
    "max": max,
    "abs": abs,
    "range": range,
}
METHODS = ("size", "numel", "ceil", "floor")
OPERATORS: Dict[Any, Any] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
}  # fmt: skip

_trees: Dict[str, Optional[ast.AST]] = {}


class EnclosingLoop(NamedTuple):
    """One loop that encloses the current line, outermost first in every list of them.

    ``times`` is how often it runs in all, if that can be known; ``counts_inner`` says that what is counted goes up
    inside a loop within it (``while step < max_steps`` around a loop over batches); ``iterable`` is what it iterates.
    """

    line: int
    name: str
    times: Optional[int]
    text: str
    iterable: Any = None
    is_for: bool = True
    counts_inner: bool = False


class UnreadableExpression(Exception):
    """An expression has no value that can be read without running the user's code."""


def enclosing_loops(script_folder: str) -> Tuple[List[EnclosingLoop], Optional[str]]:
    """Return the loops of the user's own frames around the current call, and ``file:line`` of the innermost frame."""
    found: List[EnclosingLoop] = []
    where = None
    for frame in reversed(list(user_frames(script_folder))):
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        found.extend(_loops_of(frame))
    return found, where


def user_frames(script_folder: str) -> Iterator[Any]:
    """Yield the frames of the call stack that belong to the user's files, innermost first, up to the script's own."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename, script_folder):
            yield frame
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
                return
        frame = frame.f_back  # type: ignore[assignment]


def is_user_file(path: str, script_folder: str) -> bool:
    """Whether a source file is the user's own: no library, not Leadline, not made up by an import."""
    if path.startswith(("<", HERE + os.sep)):
        return False
    if path.startswith(script_folder + os.sep):
        rest = path[len(script_folder) :].split(os.sep)
        return not {"site-packages", "dist-packages"} & set(rest)
    return not path.startswith(LIBRARIES)


def _loops_of(frame: Any) -> List[EnclosingLoop]:
    tree = _tree(frame.f_code.co_filename)
    if tree is None:
        return []
    return [_describe(node, frame) for node in _around(_scope(tree, frame), frame.f_lineno)]


def _tree(path: str) -> Optional[ast.AST]:
    if path not in _trees:
        source = "".join(linecache.getlines(path))
        try:
            _trees[path] = ast.parse(source) if source else None
        except SyntaxError:
            _trees[path] = None
    return _trees[path]


def _scope(tree: ast.AST, frame: Any) -> ast.AST:
    """Return the function the frame runs, or the whole module."""
    if frame.f_code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == frame.f_code.co_name:
            first = min([node.lineno, *[one.lineno for one in node.decorator_list]])
            if first == frame.f_code.co_firstlineno:
                return node
    return ast.Module(body=[], type_ignores=[])


def _around(scope: ast.AST, line: int) -> List[Any]:
    """Return the loops of this scope whose body holds the line, outermost first."""
    found: List[Any] = []
    for child in ast.iter_child_nodes(scope):
        if not getattr(child, "lineno", line) <= line <= (getattr(child, "end_lineno", line) or line):
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, (ast.For, ast.While)) and child.body[0].lineno <= line <= (child.body[-1].end_lineno or 0):
            found.append(child)
        found.extend(_around(child, line))
    return found


def _describe(node: Any, frame: Any) -> EnclosingLoop:
    text = ast.get_source_segment("".join(linecache.getlines(frame.f_code.co_filename)), _head(node)) or ""
    text = " ".join(text.split())
    if isinstance(node, ast.While):
        return _while(node, frame, f"while {text}")
    name = _target_name(node.target)
    inner, count, iterable = node.iter, None, None
    if isinstance(inner, ast.Call) and _called(inner) == "trange" and inner.args:
        inner = ast.Call(func=ast.Name("range"), args=inner.args, keywords=[])
    while isinstance(inner, ast.Call) and _called(inner) in WRAPPERS and inner.args:
        inner = inner.args[0]
    try:
        iterable = evaluate(inner, frame)
        iterable = getattr(iterable, "iterable", iterable)
        count = len(iterable)
    except Exception:  # noqa: BLE001 - whatever an object does when it is asked for its length, it has none for us
        count = None
    bound = _break_bound(node, frame)
    if bound is not None and (count is None or bound[0] < count) and not bound[1]:
        count = bound[0]
    return EnclosingLoop(node.lineno, name, count, text, iterable)


def _while(node: ast.While, frame: Any, text: str) -> EnclosingLoop:
    found = _compared(node.test, node, frame, (ast.Lt, ast.LtE, ast.NotEq)) or _break_bound(node, frame)
    if found is None:
        return EnclosingLoop(node.lineno, "", None, text, is_for=False)
    return EnclosingLoop(node.lineno, found[2], found[0], text, is_for=False, counts_inner=found[1])


def _break_bound(loop: Any, frame: Any) -> Optional[Tuple[int, bool, str]]:
    """Find ``if counter >= bound: break`` directly in a loop."""
    for node in loop.body:
        if isinstance(node, ast.If) and any(isinstance(one, ast.Break) for one in node.body):
            found = _compared(node.test, loop, frame, (ast.Gt, ast.GtE, ast.Eq))
            if found is not None:
                return found
    return None


def _compared(test: Any, loop: Any, frame: Any, signs: Tuple[type, ...]) -> Optional[Tuple[int, bool, str]]:
    """Find a counter of this loop compared with a bound; return (iterations, counted inside an inner loop, counter)."""
    if isinstance(test, ast.BoolOp):
        found = [_compared(one, loop, frame, signs) for one in test.values]
        return next((one for one in found if one is not None), None)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], signs):
        return None
    name = _target_name(test.left)
    counted = _counted_in(loop, name)
    if counted is None:
        return None
    try:
        bound = evaluate(test.comparators[0], frame)
    except UnreadableExpression:
        return None
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or bound <= 0 or math.isinf(bound):
        return None
    inclusive = isinstance(test.ops[0], (ast.Gt, ast.LtE))
    return math.ceil(bound) + (1 if inclusive else 0) - counted[1], counted[0], name


def _counted_in(loop: Any, name: str) -> Optional[Tuple[bool, int]]:
    """Say whether a counter goes up inside an inner loop, and where it starts; ``None`` if it is no counter."""
    if not name:
        return None
    if isinstance(loop, ast.For) and name in [one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)]:
        start = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and loop.iter.args else None
        first: Any = start.value if _called(loop.iter) == "count" and isinstance(start, ast.Constant) else 0
        tested_at_end = any(isinstance(one, ast.If) for one in loop.body[1:])
        return False, int(first) - (1 if tested_at_end else 0)
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and _target_name(node.target) == name:
            inner = [one for one in ast.walk(loop) if isinstance(one, (ast.For, ast.While)) and one is not loop]
            return any(node in list(ast.walk(one)) for one in inner), 0
    return None


def evaluate(node: Any, frame: Any) -> Any:
    """Return the value of an expression without calling the user's code.

    Raises:
        Unknown: it calls something, or a name has no value yet.
    """
    reader = READERS.get(type(node))
    if reader is None:
        raise UnreadableExpression
    return reader(node, frame)


def _constant(node: ast.Constant, _: Any) -> Any:
    return node.value


def _name(node: ast.Name, frame: Any) -> Any:
    for names in (read_locals(frame), frame.f_globals):
        if node.id in names:
            return names[node.id]
    raise UnreadableExpression


def _attribute(node: ast.Attribute, frame: Any) -> Any:
    value = getattr(evaluate(node.value, frame), node.attr, UnreadableExpression)
    if value is UnreadableExpression:
        raise UnreadableExpression
    return value


def _operation(node: ast.BinOp, frame: Any) -> Any:
    operate = OPERATORS.get(type(node.op))
    left, right = evaluate(node.left, frame), evaluate(node.right, frame)
    if operate is None or not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        raise UnreadableExpression
    if right == 0 and not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        raise UnreadableExpression
    return operate(left, right)


def _literal(node: Any, frame: Any) -> Any:
    return [evaluate(one, frame) for one in node.elts]


def _negated(node: ast.UnaryOp, frame: Any) -> Any:
    value = evaluate(node.operand, frame)
    if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
        return -value
    raise UnreadableExpression


def _item(node: ast.Subscript, frame: Any) -> Any:
    holder, key = evaluate(node.value, frame), evaluate(node.slice, frame)
    if isinstance(holder, dict) and key in holder:
        return holder[key]
    if isinstance(holder, (list, tuple)) and isinstance(key, int) and -len(holder) <= key < len(holder):
        return holder[key]
    raise UnreadableExpression


def _call(node: ast.Call, frame: Any) -> Any:
    if node.keywords:
        raise UnreadableExpression
    arguments = [evaluate(one, frame) for one in node.args]
    try:
        if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
            return FUNCTIONS[node.func.id](*arguments)
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            return getattr(evaluate(node.func.value, frame), node.func.attr)(*arguments)
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise UnreadableExpression from error
    raise UnreadableExpression


READERS: Dict[Any, Any] = {
    ast.Constant: _constant, ast.Name: _name, ast.Attribute: _attribute, ast.BinOp: _operation,
    ast.UnaryOp: _negated, ast.Subscript: _item, ast.Call: _call, ast.List: _literal, ast.Tuple: _literal,
}  # fmt: skip


def _called(node: Any) -> str:
    function = getattr(node, "func", None)
    return getattr(function, "id", None) or getattr(function, "attr", None) or ""


def _target_name(node: Any) -> str:
    """Return the dotted name of a loop variable or counter; of a tuple the first name."""
    if isinstance(node, ast.Tuple):
        return _target_name(node.elts[0])
    if isinstance(node, ast.Attribute):
        return f"{_target_name(node.value)}.{node.attr}"
    return getattr(node, "id", "")


def _head(node: Any) -> ast.AST:
    return node.test if isinstance(node, ast.While) else node.iter
