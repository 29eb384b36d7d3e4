"""Values of expressions of the user's source, read from a frame without running the user's code."""

import ast
import functools
import inspect
import linecache
import math
import operator
import sys
import types
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Sequence

MOST_COUNT = 10**15
"""A larger number of epochs or steps, such as infinity, stands for no limit."""


def is_count(value: Any) -> bool:
    """Return whether a value of the script can be a number of epochs or steps."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MOST_COUNT


def first_number(*values: Any) -> int:
    """Return the first of the values that is a number, as a script gives it, and not negative."""
    numbers = (int(value) for value in values if value is not None and str(value).strip().lstrip("-").isdigit())
    return next((number for number in numbers if number >= 0), 0)


WRAPPERS = ("enumerate", "tqdm", "trange", "track", "islice", "zip", "iter", "as_numpy", "prefetch_to_device")
"""Functions that give the elements of their first argument, beside those that show progress by their name."""
FUNCTIONS: Dict[str, Any] = {
    function.__name__: function for function in (len, int, float, round, min, max, abs, range, math.ceil, math.floor)
}
METHODS, VIEWS = ("size", "numel", "ceil", "floor", "__len__"), ("items", "keys", "values")
READABLE = {*FUNCTIONS, *METHODS, *VIEWS}
"""Functions and methods that ``evaluate`` calls."""
OPERATORS: Dict[Any, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip

COMPARISONS: Dict[Any, Any] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


class UnreadableExpression(Exception):
    """The value of an expression cannot be read without running the user's code."""


def read_locals(frame: Any) -> Dict[str, Any]:
    """Return the local variables of a frame, without keeping alive what they hold."""
    f_locals = frame.f_locals
    names = dict(f_locals)
    # Before Python 3.13 a function's f_locals is a copy that the frame keeps, and with it every tensor of the last
    # read. It is emptied, so that memory is freed when the script drops it.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        f_locals.clear()
    return names


def imagined_frame(names: Dict[str, Any], scope_globals: Dict[str, Any], path: str) -> Any:
    """Return what stands for a frame with these variables, before the first line of a file that need not run."""
    code = types.SimpleNamespace(co_flags=0, co_filename=path, co_name="", co_firstlineno=0)
    return types.SimpleNamespace(f_locals=names, f_globals=scope_globals, f_code=code, f_lineno=0)


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


def _comparison(node: ast.Compare, frame: Any) -> bool:
    left, right = evaluate(node.left, frame), evaluate(node.comparators[0], frame)
    is_holder = type(right) in (list, set, dict, range) or type(right).__module__ == "numpy"
    if len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)) and is_holder:
        return (left in right) == isinstance(node.ops[0], ast.In)
    if len(node.ops) == 1 and isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return bool(COMPARISONS[type(node.ops[0])](left, right))
    raise UnreadableExpression


def _negation(node: ast.UnaryOp, frame: Any) -> Any:
    value = evaluate(node.operand, frame)
    if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
        return -value
    raise UnreadableExpression


def _subscript(node: ast.Subscript, frame: Any) -> Any:
    holder = evaluate(node.value, frame)
    if isinstance(node.slice, ast.Slice):
        if not isinstance(holder, (list, tuple)) and type(holder).__module__ != "numpy":
            raise UnreadableExpression
        ends = (node.slice.lower, node.slice.upper, node.slice.step)
        return holder[slice(*(None if end is None else evaluate(end, frame) for end in ends))]
    key = evaluate(node.slice, frame)
    if isinstance(holder, (list, tuple)) or (isinstance(holder, dict) and key in holder):
        return holder[key]
    raise UnreadableExpression


def _call(node: ast.Call, frame: Any) -> Any:
    if called_name(node) in PARTS and isinstance(node.func, ast.Attribute):
        return range(_count_parts(node, frame))
    if called_name(node) in SAME_LENGTH and node.args:
        return evaluate(node.args[0], frame)
    if called_name(node) in ORDERS and len(node.args) == 1:
        return range(_length(node, frame))
    if called_name(node) == "sample" and len(node.args) == 2:
        return range(evaluate(node.args[1], frame))
    if node.keywords:
        raise UnreadableExpression
    arguments = [evaluate(argument, frame) for argument in node.args]
    if isinstance(node.func, ast.Name):
        return FUNCTIONS[node.func.id](*arguments)
    if isinstance(node.func, ast.Attribute):
        method = _attribute(node.func, frame)
        is_of_dict = node.func.attr in (*VIEWS, "get") and type(evaluate(node.func.value, frame)) is dict
        if node.func.attr in METHODS or is_of_dict or _reads_setting(method, arguments):
            return method(*arguments)
    raise UnreadableExpression


def _reads_setting(method: Any, arguments: List[Any]) -> bool:
    """Return whether a call is of a user's method that returns a setting, as ``config.get("train.epochs")``."""
    is_named = bool(arguments) and isinstance(arguments[0], str)
    return is_named and inspect.ismethod(method) and method.__name__ == "get"


def _list_comprehension(node: ast.ListComp, frame: Any) -> Any:
    """Return a list's length as a range: that of what it is made from, if no condition leaves elements out."""
    if len(node.generators) > 1 or node.generators[0].ifs:
        raise UnreadableExpression
    return range(len(evaluate(node.generators[0].iter, frame)))


SAME_LENGTH = ("sorted", "reversed", "list", "tuple")
"""Functions whose results are as long as their first argument."""
PARTS = ("split", "chunk", "array_split")
"""Functions and methods that divide a tensor, an array, or a data set into folds."""
ORDERS = ("randperm", "permutation", "arange")
"""Functions whose results are as long as their argument says."""


def _count_parts(node: Any, frame: Any) -> int:
    """Return the number of parts without making them: of a tensor, of an array by NumPy, or of a splitter."""
    holder: Any = None if called_name(node.func.value) in ORDERS else evaluate(node.func.value, frame)
    if hasattr(holder, "n_splits"):  # a splitter of scikit-learn
        return int(holder.n_splits)
    is_function = inspect.ismodule(holder)
    divisor = evaluate(node.args[int(is_function)], frame)
    if node.keywords or len(node.args) > 1 + is_function:
        raise UnreadableExpression
    is_numpy = is_function and holder.__name__ == "numpy"
    if isinstance(divisor, (list, tuple)):
        return len(divisor) + is_numpy  # NumPy takes the places of the cuts
    if is_numpy:
        return int(divisor)
    size = _length(node.args[0] if is_function else node.func.value, frame)
    each = math.ceil(size / divisor) if called_name(node) == "chunk" else divisor
    parts: int = math.ceil(size / each)
    return parts


def _length(node: Any, frame: Any) -> int:
    """Return the first dimension of a tensor, or of an order that is drawn anew."""
    if called_name(node) in ORDERS:
        argument = evaluate(node.args[0], frame)
        return int(argument) if isinstance(argument, int) else len(argument)
    return int(evaluate(node, frame).shape[0])


READERS: Dict[Any, Any] = {
    ast.Name: _name, ast.Attribute: _attribute, ast.BinOp: _operation, ast.UnaryOp: _negation,
    ast.Subscript: _subscript, ast.Call: _call, ast.Compare: _comparison,
    ast.ListComp: _list_comprehension,
}  # fmt: skip


def called_name(node: Any) -> str:
    """Return the name of the function that an expression calls, empty if it calls none."""
    function = getattr(node, "func", None)
    return getattr(function, "id", None) or getattr(function, "attr", None) or ""


def gives_elements(name: str) -> bool:
    """Return whether a function of this name gives the elements of its first argument."""
    return name in WRAPPERS or any(word in name.lower() for word in ("progress", "tqdm", "pbar"))


def without_progress(iterable: Any) -> Any:
    """Return what a bar of progress goes over; anything else as it is."""
    kind = type(iterable)
    return getattr(iterable, "iterable", iterable) if gives_elements(f"{kind.__module__} {kind.__name__}") else iterable


def target_name(node: Any) -> str:
    """Return the dotted name of a loop variable or counter, or ``state['step']``. For a tuple it is the first name."""
    if isinstance(node, ast.Tuple):
        return target_name(node.elts[0])
    if isinstance(node, ast.Attribute):
        return f"{target_name(node.value)}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return f"{target_name(node.value)}[{node.slice.value!r}]"
    return getattr(node, "id", "")


def assigned_names(statements: Sequence[Any]) -> Iterator[str]:
    """Yield the names that statements assign."""
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def names_read(statements: Sequence[ast.AST]) -> FrozenSet[str]:
    """Return the names and attributes in statements."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    names = [getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes]
    return frozenset(name for name in names if name)


_trees: Dict[str, Optional[ast.AST]] = {}


def parse_file(path: str) -> Optional[ast.AST]:
    """Return the syntax tree of a source file, or ``None`` if there is none."""
    if path not in _trees:
        source = "".join(linecache.getlines(path))
        try:
            _trees[path] = ast.parse(source) if source else None
        except SyntaxError:
            _trees[path] = None
    return _trees[path]


def scope_of(tree: ast.AST, frame: Any) -> ast.AST:
    """Return the function the frame runs, or the whole module."""
    name, line = frame.f_code.co_name, frame.f_code.co_firstlineno
    return tree if name == "<module>" else _functions(tree).get((name, line), _EMPTY)


_EMPTY = ast.Module(body=[], type_ignores=[])


@functools.cache  # each step asks for many functions
def _functions(tree: ast.AST) -> Dict[Any, ast.AST]:
    """Return the functions in a tree by their names and first lines, which may be those of decorators."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {(node.name, min(part.lineno for part in [node, *node.decorator_list])): node for node in nodes}


def source_text(node: ast.expr, frame: Any) -> str:
    """Return the text of an expression, on one line."""
    text = ast.get_source_segment("".join(linecache.getlines(frame.f_code.co_filename)), node) or ""
    return " ".join(text.split())


def own_statements(statements: List[Any]) -> Iterator[Any]:
    """Yield the statements of a loop, also below its conditions, whose ``break`` ends this loop."""
    for node in statements:
        yield node
        if not isinstance(node, (ast.For, ast.While, ast.FunctionDef, ast.ClassDef)):
            for part in ("body", "orelse", "handlers", "finalbody"):
                yield from own_statements(getattr(node, part, []))


def never_ends(loop: Any) -> bool:
    """Return whether a loop is ``while True`` that nothing in it ends."""
    is_endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
    return is_endless and not any(isinstance(node, (ast.Break, ast.Return)) for node in own_statements(loop.body))


def yields_forever(code: Any) -> bool:
    """Return whether the code of a generator yields within ``while True``, which nothing ends."""
    tree = parse_file(code.co_filename)
    function: Any = None if tree is None else scope_of(tree, types.SimpleNamespace(f_code=code))
    return any(map(never_ends, getattr(function, "body", ())))
