"""Read the loops around a training step from the user's source: how often each runs, and what it counts."""

import ast
import itertools
import linecache
import math
import sys
import types
from argparse import Namespace
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from leadline.graphs.torch.worker.expressions import (
    READABLE,
    UnreadableExpression,
    called_name,
    evaluate,
    read_locals,
    target_name,
)
from leadline.graphs.torch.worker.libraries import is_user_file

MOST_COUNT = 10**15
"""A larger number of epochs or steps, such as infinity, stands for no limit."""


def is_count(value: Any) -> bool:
    """Return whether a value of the script can be a number of epochs or steps."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MOST_COUNT


WRAPPERS = ("enumerate", "tqdm", "trange", "track", "islice", "zip", "iter")
_trees: Dict[str, Optional[ast.AST]] = {}


class EnclosingLoop(NamedTuple):
    """One loop that encloses the current line, and its iterations. Lists of them begin with the outermost.

    ``counts_inner``: The counter goes up in a loop within this one (``while step < max_steps`` around batches).
    ``may_end``: A condition that may end the loop before it has run ``times``; empty if there is none.
    ``joined``: Nested loops, of which an outer one changes the length of the inner one, as one over all their passes.
    ``varies_with``: The outer loop that may change how long this one is, of which only the current pass is known.
    """

    line: int
    name: str
    times: Optional[int]
    text: str
    iterable: Any = None
    is_for: bool = True
    counts_inner: bool = False
    may_end: str = ""
    joined: bool = False
    varies_with: str = ""
    names: FrozenSet[str] = frozenset()
    """Names and attributes that a ``for`` loop reads."""


def enclosing_loops(script_folder: str) -> List[EnclosingLoop]:
    """Return the loops of the user's frames around the current call."""
    loops: List[EnclosingLoop] = []
    for frame in reversed(list(user_frames(script_folder))):
        tree = parse_file(frame.f_code.co_filename)
        if tree is not None:
            nodes = _loops_around(_scope(tree, frame), frame.f_lineno)
            loops += _join_varying(nodes, [_describe_loop(node, frame) for node in nodes], frame)
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


def parse_file(path: str) -> Optional[ast.AST]:
    """Return the syntax tree of a source file, or ``None`` if there is none."""
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
    text, may_end = _source(_bound_of(node), frame), _early_end(node, frame)
    if isinstance(node, ast.While):
        times, counts_inner, counter = _while_bound(node, frame) or (None, False, "")
        return EnclosingLoop(node.lineno, counter, times, f"while {text}", None, False, counts_inner, may_end)
    iterable, count = _iterations(node, frame)
    name, names = target_name(node.target), _names_read(node.body)
    return EnclosingLoop(node.lineno, name, count, text, iterable, may_end=may_end, names=names)


def _bound_of(loop: Any) -> Any:
    """Return the expression that decides how often a loop runs."""
    return loop.test if isinstance(loop, ast.While) else loop.iter


def _source(node: ast.expr, frame: Any) -> str:
    text = ast.get_source_segment("".join(linecache.getlines(frame.f_code.co_filename)), node) or ""
    return " ".join(text.split())


def _early_end(loop: Any, frame: Any) -> str:
    """Return the first condition for a ``break`` that depends on the run, with its line, or nothing."""
    for node in _same_loop(loop.body):
        if not isinstance(node, ast.If) or not any(
            isinstance(child, ast.Break) for child in (*node.body, *node.orelse)
        ):
            continue
        if (
            not _stays_false(node.test, loop, frame)
            and _find_comparison(node.test, loop, frame, (ast.Gt, ast.GtE, ast.Eq)) is None
        ):
            return f"`if {_source(node.test, frame)}` in line {node.lineno}"
    return ""


def _stays_false(test: Any, loop: Any, frame: Any) -> bool:
    """Return whether a condition is false in all passes: a setting, or a conjunction with a setting."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_stays_false(operand, loop, frame) for operand in test.values)
    try:
        if isinstance(test, ast.Attribute):  # options of the command line stay as they are
            return isinstance(evaluate(test.value, frame), Namespace) and not evaluate(test, frame)
        assigned = [target_name(part) for node in ast.walk(loop) for part in getattr(node, "targets", [])]
        return isinstance(test, ast.Name) and test.id not in assigned and evaluate(test, frame) is False
    except UnreadableExpression:
        return False


def _same_loop(statements: List[Any]) -> Iterator[Any]:
    """Yield the statements of a loop, also below its conditions, whose ``break`` ends this loop."""
    for node in statements:
        yield node
        if not isinstance(node, (ast.For, ast.While, ast.FunctionDef, ast.ClassDef)):
            for part in ("body", "orelse", "handlers", "finalbody"):
                yield from _same_loop(getattr(node, part, []))


def _while_bound(node: ast.While, frame: Any) -> Optional[Tuple[int, bool, str]]:
    return _find_comparison(node.test, node, frame, (ast.Lt, ast.LtE, ast.NotEq)) or _break_bound(node, frame)


def _iterations(node: ast.For, frame: Any) -> Tuple[Any, Optional[int]]:
    """Return what a loop iterates over, without wrappers, and how often; ``None`` where either is unknown."""
    iterable, count = None, None
    try:
        iterated = _unwrap(node.iter, node.target)[0]
        if called_name(iterated) == "split" and isinstance(iterated.func, ast.Attribute):
            # As the splitters of scikit-learn, which are folds of a cross-validation.
            iterable = range(evaluate(iterated.func.value, frame).n_splits)
        else:
            iterable = evaluate(iterated, frame)
        iterable = getattr(iterable, "iterable", iterable)
        count = len(iterable) if len(iterable) <= MOST_COUNT else None
    except Exception:  # noqa: BLE001 - any error of the user's object means that its length is unknown
        count = None
    bound = _break_bound(node, frame)
    if bound is not None and (count is None or bound[0] < count) and not bound[1]:
        count = bound[0]
    return iterable, count


def _unwrap(iterable: Any, target: Any) -> Tuple[Any, Any]:
    """Return the iterable within its wrappers, and the target of its elements, ``None`` if that is not known."""
    if isinstance(iterable, ast.Call) and called_name(iterable) == "trange" and iterable.args:
        iterable = ast.Call(func=ast.Name("range"), args=iterable.args, keywords=[])
    while isinstance(iterable, ast.Call) and called_name(iterable) in WRAPPERS and iterable.args:
        if called_name(iterable) in ("enumerate", "zip"):
            place = 1 if called_name(iterable) == "enumerate" else 0
            target = target.elts[place] if isinstance(target, ast.Tuple) and len(target.elts) > place else None
        iterable = iterable.args[0]
    return iterable, target


MOST_ELEMENTS = 10_000
"""Elements of a list whose inner loops are counted one by one. Of a longer list it is as many, evenly spaced."""
COUNTABLE: Tuple[Any, ...] = (list, tuple, range, dict, type({}.keys()), type({}.values()), type({}.items()))
"""What can be iterated over without running the user's code."""


def _join_varying(nodes: List[Any], loops: List[EnclosingLoop], frame: Any) -> List[EnclosingLoop]:
    """Join loops whose length depends on the variables of an outer one into one loop, as long as all its passes."""
    for last in range(len(nodes) - 1, 0, -1):
        for first in range(last):
            if _is_over_names(loops[first]) or not (kind := _depends(nodes[last], nodes[first])):
                continue
            if kind == INDIRECT:
                varying = loops[last]._replace(varies_with=loops[first].text)
                return [*_join_varying(nodes[:last], loops[:last], frame), varying, *loops[last + 1 :]]
            text = "` and `".join(loop.text for loop in loops[first : last + 1])
            times = _total(nodes[first : last + 1], frame)
            joined = loops[last]._replace(text=text, times=times, line=nodes[first].lineno, joined=True)
            return [*_join_varying(nodes[:first], loops[:first], frame), joined, *loops[last + 1 :]]
    return loops


def _is_over_names(loop: EnclosingLoop) -> bool:
    names = loop.iterable
    return isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)


DIRECT, INDIRECT = "direct", "through assignments or calls"


def _depends(inner: Any, outer: Any) -> str:
    """Return how the length of a loop depends on the variables of an outer one, empty if it does not."""
    if not isinstance(outer, ast.For):
        return ""
    targets = set(_variables(outer.target))
    names = set(_variables(_bound_of(inner)))
    if not names.isdisjoint(targets):
        return DIRECT
    names.update(_variables(_bound_of(inner), within_calls=True))
    assignments = [node for node in ast.walk(outer) if isinstance(node, ast.Assign)]
    for _ in assignments:
        for node in assignments:
            if any(not names.isdisjoint(_variables(target)) for target in node.targets):
                names.update(_variables(node.value, within_calls=True))
    return "" if names.isdisjoint(targets) else INDIRECT


def _variables(node: Any, *, within_calls: bool = False) -> Iterator[str]:
    """Yield the variables that decide how long a value is, without those that calls of the user's functions take."""
    if isinstance(node, ast.Name):
        yield node.id
        return
    parts: Sequence[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and called_name(node) in WRAPPERS:
        parts = node.args[:1]  # others are labels and limits
    elif isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Call) and not within_calls and called_name(node) not in READABLE
    ):
        parts = []
    for part in parts:
        yield from _variables(part, within_calls=within_calls)


def _total(nodes: List[Any], frame: Any) -> Optional[int]:
    """Return how often the innermost of nested loops runs in all, or ``None`` if that cannot be read."""
    if isinstance(nodes[0], ast.While):
        bound = _while_bound(nodes[0], frame)
        return bound[0] if bound is not None and len(nodes) == 1 else None
    values, count = _iterations(nodes[0], frame)
    if len(nodes) == 1 or count is None:
        return count
    target = _unwrap(nodes[0].iter, nodes[0].target)[1]
    if not isinstance(values, COUNTABLE) or target is None or count != len(values):
        return None
    chosen = itertools.islice(values, 0, None, -(-count // MOST_ELEMENTS))
    totals: List[int] = []
    for value in chosen:
        names = dict(read_locals(frame))
        if not _bind(target, value, names):
            return None
        code = types.SimpleNamespace(co_flags=0, co_filename=frame.f_code.co_filename)
        total = _total(nodes[1:], types.SimpleNamespace(f_locals=names, f_globals=frame.f_globals, f_code=code))
        if total is None:
            return None
        totals.append(total)
    return round(sum(totals) * count / len(totals)) if totals else 0


def _bind(target: Any, value: Any, names: Dict[str, Any]) -> bool:
    """Assign a value to the target of a loop. False if the target is no name or tuple of names."""
    if isinstance(target, ast.Name):
        names[target.id] = value
        return True
    if isinstance(target, ast.Tuple) and isinstance(value, (list, tuple)) and len(value) == len(target.elts):
        return all(_bind(part, element, names) for part, element in zip(target.elts, value))  # noqa: B905
    return False


def _names_read(statements: Sequence[ast.AST]) -> FrozenSet[str]:
    nodes = [node for statement in statements for node in ast.walk(statement)]
    names = [getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes]
    return frozenset(name for name in names if name)


def _break_bound(loop: Any, frame: Any) -> Optional[Tuple[int, bool, str]]:
    """Find ``if counter >= bound: break`` directly in a loop."""
    for node in loop.body:
        if isinstance(node, ast.If) and any(isinstance(statement, ast.Break) for statement in node.body):
            bound = _find_comparison(node.test, loop, frame, (ast.Gt, ast.GtE, ast.Eq))
            if bound is not None:
                return bound[0] + _extra_rounds(loop, node, bound[2], frame), *bound[1:]
    return None


def _extra_rounds(loop: Any, test: ast.If, counter: str, frame: Any) -> int:
    """Return the passes of the current line beyond those of a test that follows both the line and the increment."""
    lines = [
        node.lineno
        for node in ast.walk(loop)
        if isinstance(node, ast.AugAssign) and target_name(node.target) == counter
    ]
    if not lines:
        return 0
    return int(test.lineno < lines[0]) - int(getattr(frame, "f_lineno", 0) > test.lineno)


def _find_comparison(test: Any, loop: Any, frame: Any, operators: Tuple[type, ...]) -> Optional[Tuple[int, bool, str]]:
    """Find a counter of this loop compared with a bound. Return iterations, whether an inner loop counts, counter."""
    if isinstance(test, ast.BoolOp):
        bounds = [_find_comparison(operand, loop, frame, operators) for operand in test.values]
        return next((operand for operand in bounds if operand is not None), None)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], operators):
        return None
    name = target_name(test.left)
    counted = _read_counter(loop, name, frame)
    if counted is None:
        return None
    try:
        bound = evaluate(test.comparators[0], frame)
    except UnreadableExpression:
        return None
    if not is_count(bound):
        return None
    inner, start, increment = counted
    rounds = (bound - start) / increment
    return math.floor(rounds) + 1 if isinstance(test.ops[0], (ast.Gt, ast.LtE)) else math.ceil(rounds), inner, name


def _read_counter(loop: Any, name: str, frame: Any) -> Optional[Tuple[bool, float, float]]:
    """Return whether an inner loop increments a counter, its start and increment; ``None`` if ``name`` is none."""
    if not name:
        return None
    targets = ast.walk(loop.target) if isinstance(loop, ast.For) else ()
    if name in [child.id for child in targets if isinstance(child, ast.Name)]:
        start = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and loop.iter.args else None
        first: Any = start.value if called_name(loop.iter) == "count" and isinstance(start, ast.Constant) else 0
        tested_at_end = any(isinstance(child, ast.If) for child in loop.body[1:])
        return False, int(first) - (1 if tested_at_end else 0), 1
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and target_name(node.target) == name:
            try:
                increment = evaluate(node.value, frame) if isinstance(node.op, ast.Add) else None
            except UnreadableExpression:
                return None
            if increment is None or not is_count(increment):
                return None
            loops = [child for child in ast.walk(loop) if isinstance(child, (ast.For, ast.While))]
            inner = any(node in list(ast.walk(child)) for child in loops if child is not loop)
            return inner, _first_value(name, loop, frame), increment
    return None


def _first_value(name: str, loop: Any, frame: Any) -> float:
    """Return the number that a counter starts at: a constant that is assigned before the loop, else zero."""
    tree = parse_file(frame.f_code.co_filename)
    before = [
        node.value.value
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Assign) and node.lineno < loop.lineno and isinstance(node.value, ast.Constant)
        if name in map(target_name, node.targets)
    ]
    return next((value for value in reversed(before) if isinstance(value, (int, float))), 0)
