"""Read the loops around a training step from the user's source: how often each runs, and what it counts."""

import ast
import inspect
import linecache
import math
import operator
import sys
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

from leadline.graphs.torch.worker.libraries import is_user_file


def read_locals(frame: Any) -> Dict[str, Any]:
    """Return the local variables of a frame, without keeping alive what they hold."""
    f_locals = frame.f_locals
    names = dict(f_locals)
    # Before Python 3.13 a function's f_locals is a copy that the frame keeps, and with it every tensor of the last
    # read. It is emptied, so that memory is freed when the script drops it.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        f_locals.clear()
    return names


MOST_COUNT = 10**15
"""A larger number of epochs or steps, such as infinity, stands for no limit."""


def is_count(value: Any) -> bool:
    """Return whether a value of the script can be a number of epochs or steps."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MOST_COUNT


WRAPPERS = ("enumerate", "tqdm", "trange", "track", "islice", "zip", "iter")
FUNCTIONS: Dict[str, Any] = {function.__name__: function for function in (len, int, float, round, min, max, abs, range)}
METHODS = ("size", "numel", "ceil", "floor")
OPERATORS: Dict[Any, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip

waiting_frames: List[Any] = []
"""Frames of the user that wait for a process, which runs in place. Their innermost loop is over the processes."""
_trees: Dict[str, Optional[ast.AST]] = {}


class EnclosingLoop(NamedTuple):
    """One loop that encloses the current line, and its iterations. Lists of them begin with the outermost.

    ``counts_inner``: The counter goes up in a loop within this one (``while step < max_steps`` around batches).
    """

    line: int
    name: str
    times: Optional[int]
    text: str
    iterable: Any = None
    is_for: bool = True
    counts_inner: bool = False
    names: FrozenSet[str] = frozenset()
    """Names and attributes that a ``for`` loop reads."""


class UnreadableExpression(Exception):
    """The value of an expression cannot be read without running the user's code."""


def enclosing_loops(script_folder: str) -> List[EnclosingLoop]:
    """Return the loops of the user's frames around the current call."""
    loops: List[EnclosingLoop] = []
    for frame in reversed(list(user_frames(script_folder))):
        tree = _parse_file(frame.f_code.co_filename)
        if tree is not None:
            nodes = _loops_around(_scope(tree, frame), frame.f_lineno)
            is_waiting = any(frame is waiting for waiting in waiting_frames)
            loops += [_describe_loop(node, frame) for node in (nodes[:-1] if is_waiting else nodes)]
    return loops


def user_frames(script_folder: str) -> Iterator[Any]:
    """Yield the frames of the user's files on the call stack, innermost first, up to the script's own."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename, script_folder):
            yield frame
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
                return
        frame = frame.f_back  # type: ignore[assignment]


def _parse_file(path: str) -> Optional[ast.AST]:
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
            first = min([node.lineno, *[decorator.lineno for decorator in node.decorator_list]])
            if first == frame.f_code.co_firstlineno:
                return node
    return ast.Module(body=[], type_ignores=[])


def _loops_around(scope: ast.AST, line: int) -> List[Any]:
    """Return the loops of this scope whose body holds the line, outermost first."""
    loops: List[Any] = []
    for child in ast.iter_child_nodes(scope):
        if not getattr(child, "lineno", line) <= line <= (getattr(child, "end_lineno", line) or line):
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, (ast.For, ast.While)) and child.body[0].lineno <= line <= (child.body[-1].end_lineno or 0):
            loops.append(child)
        loops.extend(_loops_around(child, line))
    return loops


def _describe_loop(node: Any, frame: Any) -> EnclosingLoop:
    expression = node.test if isinstance(node, ast.While) else node.iter
    text = ast.get_source_segment("".join(linecache.getlines(frame.f_code.co_filename)), expression) or ""
    text = " ".join(text.split())
    if isinstance(node, ast.While):
        bound = _find_comparison(node.test, node, frame, (ast.Lt, ast.LtE, ast.NotEq)) or _break_bound(node, frame)
        times, counts_inner, counter = bound or (None, False, "")
        return EnclosingLoop(node.lineno, counter, times, f"while {text}", is_for=False, counts_inner=counts_inner)
    name = _target_name(node.target)
    inner, count, iterable = node.iter, None, None
    if isinstance(inner, ast.Call) and _called_name(inner) == "trange" and inner.args:
        inner = ast.Call(func=ast.Name("range"), args=inner.args, keywords=[])
    while isinstance(inner, ast.Call) and _called_name(inner) in WRAPPERS and inner.args:
        inner = inner.args[0]
    try:
        iterable = evaluate(inner, frame)
        iterable = getattr(iterable, "iterable", iterable)
        count = len(iterable) if len(iterable) <= MOST_COUNT else None
    except Exception:  # noqa: BLE001 - any error of the user's object means that its length is unknown
        count = None
    bound = _break_bound(node, frame)
    if bound is not None and (count is None or bound[0] < count) and not bound[1]:
        count = bound[0]
    return EnclosingLoop(node.lineno, name, count, text, iterable, names=_names_read(node.body))


def _names_read(statements: List[ast.stmt]) -> FrozenSet[str]:
    nodes = [node for statement in statements for node in ast.walk(statement)]
    names = [getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes]
    return frozenset(name for name in names if name)


def _break_bound(loop: Any, frame: Any) -> Optional[Tuple[int, bool, str]]:
    """Find ``if counter >= bound: break`` directly in a loop."""
    for node in loop.body:
        if isinstance(node, ast.If) and any(isinstance(statement, ast.Break) for statement in node.body):
            bound = _find_comparison(node.test, loop, frame, (ast.Gt, ast.GtE, ast.Eq))
            if bound is not None:
                return bound
    return None


def _find_comparison(test: Any, loop: Any, frame: Any, operators: Tuple[type, ...]) -> Optional[Tuple[int, bool, str]]:
    """Find a counter of this loop compared with a bound. Return iterations, whether an inner loop counts, counter."""
    if isinstance(test, ast.BoolOp):
        bounds = [_find_comparison(operand, loop, frame, operators) for operand in test.values]
        return next((operand for operand in bounds if operand is not None), None)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], operators):
        return None
    name = _target_name(test.left)
    counted = _counter_start(loop, name)
    if counted is None:
        return None
    try:
        bound = evaluate(test.comparators[0], frame)
    except UnreadableExpression:
        return None
    if not is_count(bound):
        return None
    inclusive = isinstance(test.ops[0], (ast.Gt, ast.LtE))
    return math.ceil(bound) + (1 if inclusive else 0) - counted[1], counted[0], name


def _counter_start(loop: Any, name: str) -> Optional[Tuple[bool, int]]:
    """Return whether an inner loop increments a counter, and its start; ``None`` if ``name`` is no counter."""
    if not name:
        return None
    targets = ast.walk(loop.target) if isinstance(loop, ast.For) else ()
    if name in [child.id for child in targets if isinstance(child, ast.Name)]:
        start = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and loop.iter.args else None
        first: Any = start.value if _called_name(loop.iter) == "count" and isinstance(start, ast.Constant) else 0
        tested_at_end = any(isinstance(child, ast.If) for child in loop.body[1:])
        return False, int(first) - (1 if tested_at_end else 0)
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and _target_name(node.target) == name:
            loops = [child for child in ast.walk(loop) if isinstance(child, (ast.For, ast.While))]
            return any(node in list(ast.walk(inner)) for inner in loops if inner is not loop), 0
    return None


def evaluate(node: Any, frame: Any) -> Any:
    """Return the value of an expression; ``UnreadableExpression`` if it would call the user's code or has none yet."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [evaluate(element, frame) for element in node.elts]
    try:
        return READERS[type(node)](node, frame)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise UnreadableExpression from error


def _name(node: ast.Name, frame: Any) -> Any:
    for names in (read_locals(frame), frame.f_globals):
        if node.id in names:
            return names[node.id]
    raise UnreadableExpression


def _attribute(node: ast.Attribute, frame: Any) -> Any:
    return getattr(evaluate(node.value, frame), node.attr)


def _operation(node: ast.BinOp, frame: Any) -> Any:
    left, right = evaluate(node.left, frame), evaluate(node.right, frame)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return OPERATORS[type(node.op)](left, right)
    raise UnreadableExpression


def _negation(node: ast.UnaryOp, frame: Any) -> Any:
    value = evaluate(node.operand, frame)
    if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
        return -value
    raise UnreadableExpression


def _subscript(node: ast.Subscript, frame: Any) -> Any:
    holder, key = evaluate(node.value, frame), evaluate(node.slice, frame)
    if isinstance(holder, (list, tuple)) or (isinstance(holder, dict) and key in holder):
        return holder[key]
    raise UnreadableExpression


def _call(node: ast.Call, frame: Any) -> Any:
    if node.keywords:
        raise UnreadableExpression
    arguments = [evaluate(argument, frame) for argument in node.args]
    if isinstance(node.func, ast.Name):
        return FUNCTIONS[node.func.id](*arguments)
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        return _attribute(node.func, frame)(*arguments)
    raise UnreadableExpression


READERS: Dict[Any, Any] = {
    ast.Name: _name, ast.Attribute: _attribute, ast.BinOp: _operation, ast.UnaryOp: _negation,
    ast.Subscript: _subscript, ast.Call: _call,
}  # fmt: skip


def _called_name(node: Any) -> str:
    function = getattr(node, "func", None)
    return getattr(function, "id", None) or getattr(function, "attr", None) or ""


def _target_name(node: Any) -> str:
    """Return the dotted name of a loop variable or counter. For a tuple it is the first name."""
    if isinstance(node, ast.Tuple):
        return _target_name(node.elts[0])
    if isinstance(node, ast.Attribute):
        return f"{_target_name(node.value)}.{node.attr}"
    return getattr(node, "id", "")
