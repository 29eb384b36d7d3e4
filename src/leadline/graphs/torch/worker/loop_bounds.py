"""Ends of loops in the user's source: counters compared with bounds, and conditions for a ``break``."""

import ast
import contextlib
import math
from argparse import Namespace
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from leadline.graphs.torch.worker.expressions import (
    UnreadableExpression,
    assigned_names,
    called_name,
    evaluate,
    gives_elements,
    is_count,
    parse_file,
    scope_of,
    source_text,
    target_name,
)


def breaks_now(statements: List[Any], frame: Any) -> bool:
    """Return whether a setting that is on, as ``--dry-run``, ends the loop of these statements in the current pass."""
    for node in statements:
        if isinstance(node, ast.If) and any(isinstance(child, ast.Break) for child in node.body):
            if isinstance(node.test, ast.Attribute) and read_setting(node.test, frame) is True:
                return True
        elif isinstance(node, ast.If) and _holds(node.test, frame) and breaks_now(node.body, frame):
            return True
    return False


def read_setting(test: ast.Attribute, frame: Any) -> Any:
    """Return an option of the command line, which stays as it is, ``None`` for any other attribute."""
    try:
        return evaluate(test, frame) if isinstance(evaluate(test.value, frame), Namespace) else None
    except UnreadableExpression:
        return None


def _holds(test: Any, frame: Any) -> bool:
    """Return whether an equation, as in ``if batch % 10 == 0``, is true now."""
    try:
        is_equation = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)
        return is_equation and bool(evaluate(test.left, frame) == evaluate(test.comparators[0], frame))
    except UnreadableExpression:
        return False


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


def steps_at_end(loop: Any, scope: Any, line: int) -> bool:
    """Return whether the end of a loop makes the step of ``line`` from what accumulated since the last whole step.

    Either a condition around the step names the last pass, too, or the code after the loop makes the same step.
    """
    around = [node for node in ast.walk(loop) if isinstance(node, ast.If) and holds_line(node.body, line)]
    for test in (
        node.test for node in around if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or)
    ):
        others = [each for each in test.values if not any(isinstance(part, ast.Mod) for part in ast.walk(each))]
        equations = [each for each in others if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Eq)]
        if equations and len(others) < len(test.values):
            return True
    steps = {ast.dump(call.func) for call in _step_calls(loop) if call.lineno <= line <= (call.end_lineno or line)}
    after = [node for node in own_statements(getattr(scope, "body", [])) if node.lineno > (loop.end_lineno or line)]
    plain = [node for node in after if isinstance(node, (ast.Expr, ast.Assign))]
    return any(ast.dump(call.func) in steps for node in plain for call in _step_calls(node))


def counts_on(loop: Any, scope: Any, line: int) -> bool:
    """Return whether the condition of a step at ``line`` counts the passes of a loop on when ``scope`` runs it again.

    It names the epoch, or a counter that nothing in ``scope`` sets back.
    """
    tests = [node.test for node in ast.walk(loop) if isinstance(node, ast.If) and holds_line(node.body, line)]
    parts: List[Any] = [part for test in tests for part in ast.walk(test)]
    counted = [node for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
               for node in ast.walk(part.left)]  # fmt: skip
    names = {target_name(node) for node in counted} - {""}
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and not names.isdisjoint(map(target_name, node.targets)):
            names |= {target_name(part) for part in ast.walk(node.value)} - {""}
    added = {target_name(node.target) for node in ast.walk(loop) if isinstance(node, ast.AugAssign)}
    reset = {target_name(target) for node in ast.walk(scope) for target in getattr(node, "targets", [])}
    return any("epoch" in name for name in names) or not (names & added) <= reset


def holds_line(statements: List[Any], line: int) -> bool:
    """Return whether a line is one of these consecutive statements."""
    return bool(statements) and statements[0].lineno <= line <= (statements[-1].end_lineno or line)


def _step_calls(node: Any) -> Iterator[ast.Call]:
    """Yield the calls of optimizers and gradient scalers within a statement."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and called_name(call) in ("step", "train_batch"):
            yield call


def while_bound(node: ast.While, frame: Any) -> Optional[Tuple[int, bool, str]]:
    """Return the passes of a ``while`` loop, whether they are steps within it, and the counter."""
    bound = find_comparison(node.test, node, frame, (ast.Lt, ast.LtE, ast.NotEq)) or break_bound(node, frame)
    # A counter that an outer loop sets back, and that goes up within this one, tells neither passes nor steps.
    return None if bound is not None and bound[1] and _is_set_back(node, bound[2], frame) else bound


def _is_set_back(loop: Any, counter: str, frame: Any) -> bool:
    """Return whether a loop around this one assigns the counter anew in each pass."""
    tree = parse_file(frame.f_code.co_filename)
    within = set(map(id, ast.walk(loop)))
    nodes = [] if tree is None else list(ast.walk(scope_of(tree, frame)))
    outer = [node for node in nodes if isinstance(node, (ast.For, ast.While)) and _is_around(node, loop.lineno)]
    parts = [part for node in outer for part in ast.walk(node) if id(part) not in within]
    return any(counter in map(target_name, getattr(part, "targets", [])) for part in parts)


def break_bound(loop: Any, frame: Any) -> Optional[Tuple[int, bool, str]]:
    """Find ``if counter >= bound: break`` directly in a loop, such a ``return``, or a ``break`` of the current pass."""
    if breaks_now(loop.body, frame):
        return 1 + (passes_before(loop, frame) or 0), False, ""
    for node in _exits(loop, frame):
        bound = find_comparison(node.test, loop, frame, (ast.Gt, ast.GtE, ast.Eq))
        if bound is not None:
            return bound[0] + _extra_rounds(loop, node, bound[2], frame), *bound[1:]
    return None


def _exits(loop: Any, frame: Any) -> Iterator[ast.If]:
    """Yield the conditions that end a loop, also below one that holds, as ``if trials is not None``."""
    holding = (node for node in loop.body if isinstance(node, ast.If) and _setting(node.test, frame) is True)
    direct = [*loop.body, *(child for node in holding for child in node.body)]
    for node in _within_scope([loop]):
        if isinstance(node, ast.If):
            kinds = (ast.Break, ast.Return) if node in direct else ast.Return
            if any(isinstance(statement, kinds) for statement in node.body):
                yield node


def passes_before(loop: Any, frame: Any) -> Optional[int]:
    """Return the passes of a ``for`` loop before the current one, if its variable counts them."""
    if not isinstance(loop, ast.For):
        return None
    name = target_name(loop.target)
    if sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(loop.target)) > 1:
        return None  # as of `_`, a counter and a part of the batch
    parts: List[Any] = [node for statement in loop.body for node in ast.walk(statement)]
    targets = [[node.target] if isinstance(node, ast.For) else getattr(node, "targets", []) for node in parts]
    if any(getattr(part, "id", "") == name for each in targets for target in each for part in ast.walk(target)):
        return None  # as of `_`, which several loops assign
    try:
        counted = _read_counter(loop, name, frame)
        return None if counted is None else int((evaluate(ast.Name(name), frame) - counted[1]) // counted[2])
    except (UnreadableExpression, TypeError, ZeroDivisionError):
        return None


class CountedPasses(NamedTuple):
    """What a counter of passes was at the current line.

    ``before``: Passes before the current one, ``None`` if nothing counts them.
    ``holder``: Line of the loop that increments the counter, the loop itself or a loop within it.
    ``period``: N of a condition ``... % N`` around the current line, zero without.
    """

    before: Optional[int] = None
    holder: int = 0
    period: int = 0


def counted_passes(loop: ast.While, counter: str, frame: Any) -> CountedPasses:
    """Return what the counter of a loop counts at the current line of a frame."""
    try:
        counted = _read_counter(loop, counter, frame)
        value = evaluate(ast.parse(counter, mode="eval").body, frame) if counted is not None else None
        if counted is None or not isinstance(value, (int, float)):
            return CountedPasses()
        nodes: List[Any] = list(ast.walk(loop))
        line = frame.f_lineno
        changes = [node.lineno for node in nodes if counter in map(target_name, _targets(node))]
        if not changes:  # a method that the loop calls counts, as at the end of an epoch
            return CountedPasses(int((value - counted[1]) // counted[2]), loop.lineno)
        change = changes[0]
        holders = [node for node in nodes if isinstance(node, (ast.For, ast.While)) and _is_around(node, change)]
        tests = [node.test for node in nodes if isinstance(node, ast.If) and holds_line(node.body, line)]
        parts: List[Any] = [part for test in tests for part in ast.walk(test)]
        divisors = [part.right for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)]
        period = max((int(evaluate(divisor, frame)) for divisor in divisors), default=0)
        before = int((value - counted[1]) // counted[2]) - int(change < line)
        return CountedPasses(before, max(holder.lineno for holder in holders), period)
    except (UnreadableExpression, SyntaxError, TypeError, ValueError):
        return CountedPasses()


def _extra_rounds(loop: Any, test: ast.If, counter: str, frame: Any) -> int:
    """Return the passes of the current line beyond those of a test that follows both the line and the increment."""
    # The loop itself increments its variable, whatever else adds to it in each pass.
    nodes: Iterator[Any] = iter(()) if _is_variable_of(loop, counter) else ast.walk(loop)
    increment = next((node.lineno for node in nodes if counter in map(target_name, _targets(node))), math.inf)
    return int(test.lineno < increment) - int(getattr(frame, "f_lineno", 0) > test.lineno)


def find_comparison(test: Any, loop: Any, frame: Any, operators: Tuple[type, ...]) -> Optional[Tuple[int, bool, str]]:
    """Find a counter of this loop compared with a bound. Return rounds, whether they are steps within it, counter."""
    if isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) and any(_setting(operand, frame) is False for operand in test.values):
            return None
        bounds = [find_comparison(operand, loop, frame, operators) for operand in test.values]
        return next((operand for operand in bounds if operand is not None), None)
    if isinstance(test, ast.Name):  # a condition with a name, as in `if last_step: break`
        assigned = [each for each in loop.body if isinstance(each, ast.Assign)]
        named = [each.value for each in assigned if test.id in map(target_name, each.targets)]
        return find_comparison(named[0], loop, frame, operators) if len(named) == 1 else None
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


def _setting(test: Any, frame: Any) -> Any:
    """Return the present value of a setting, as ``self.debug`` or ``trials is not None``; ``None`` if it is none."""
    with contextlib.suppress(UnreadableExpression):
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
            return evaluate(test.left, frame) is not None
        return evaluate(test, frame) if isinstance(test, (ast.Name, ast.Attribute)) else None


def _read_counter(loop: Any, name: str, frame: Any) -> Optional[Tuple[bool, float, float]]:
    """Return whether a counter counts steps, its start and increment; ``None`` if ``name`` is none.

    It counts steps if an inner loop increments it, or a condition under which the step is made. A counter that goes up
    under another condition, or is reset, counts something else, such as epochs without progress.
    """
    if not name:
        return None
    try:
        if _is_variable_of(loop, name):
            counted = read_target(loop.iter, loop.target, name, frame)
            added = [each for each in loop.body if isinstance(each, ast.AugAssign) and target_name(each.target) == name]
            offset = sum(evaluate(_added(each, name), frame) for each in added)
            return None if counted is None else (counted[0], counted[1] + offset, counted[2])
        nodes: List[Any] = list(ast.walk(loop))
        changes = [node for node in nodes if name in map(target_name, _targets(node))]
        if not changes and name.startswith("self."):
            nodes = _called_methods(loop, frame)
            changes = [node for node in nodes if name in map(target_name, _targets(node))]
        increments = [evaluate(_added(node, name), frame) for node in changes]
        if not changes or not all(map(is_count, increments)):
            return None
        line, blocks = changes[0].lineno, (ast.For, ast.While, ast.If)
        around = [part for part in nodes if isinstance(part, blocks) and part is not loop and _is_around(part, line)]
        around = [part for part in around if not isinstance(part, ast.If) or _setting(part.test, frame) is not True]
        conditions = [part for part in around if isinstance(part, ast.If)]
        # That of Accelerate tells that the optimizer makes a step.
        conditions = [part for part in conditions if not source_text(part.test, frame).endswith("sync_gradients")]
        if not all(_same_branch(part, line, frame.f_lineno) for part in conditions):
            return None
        return bool(around), _first_value(name, loop, frame), increments[0]
    except UnreadableExpression:
        return None


def _called_methods(loop: Any, frame: Any) -> List[Any]:
    """Return the nodes of the methods that a loop calls of its own object, which are in the same file."""
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    called = {called_name(call) for call in calls if target_name(call.func).startswith("self.")}
    tree = parse_file(frame.f_code.co_filename)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)] if tree is not None else []
    methods = [method for kind in classes if _is_around(kind, loop.lineno) for method in kind.body]
    return [node for method in methods if getattr(method, "name", "") in called for node in ast.walk(method)]


def varying_increment(loop: Any, counter: str, frame: Any) -> str:
    """Return the expression that a counter goes up by, if each pass computes it anew; else nothing."""
    computed = set(assigned_names(loop.body)) - {counter}
    for node in ast.walk(loop):
        if counter and counter in map(target_name, _targets(node)):
            with contextlib.suppress(UnreadableExpression):
                added = _added(node, counter)
                if any(isinstance(part, ast.Name) and part.id in computed for part in ast.walk(added)):
                    return source_text(added, frame)
    return ""


def _is_variable_of(loop: Any, name: str) -> bool:
    return isinstance(loop, ast.For) and name in map(target_name, ast.walk(loop.target))


def read_target(iterable: Any, target: Any, name: str, frame: Any) -> Optional[Tuple[bool, float, float]]:
    """Return the start and increment of a loop's variable that counts, as ``_read_counter`` does."""
    kind = called_name(iterable)
    if kind == "enumerate" and isinstance(target, ast.Tuple) and target_name(target.elts[0]) == name:
        starts = [*iterable.args[1:], *(word.value for word in iterable.keywords)]
        return False, evaluate(starts[0], frame) if starts else 0, 1
    if kind in ("range", "trange", "count") and target_name(target) == name:
        arguments = [evaluate(argument, frame) for argument in iterable.args]
        has_start = len(arguments) > (0 if kind == "count" else 1)
        place = 1 if kind == "count" else 2
        return False, arguments[0] if has_start else 0, arguments[place] if len(arguments) > place else 1
    if gives_elements(kind) and iterable.args:
        return read_target(iterable.args[0], target, name, frame)
    if isinstance(iterable, (ast.Name, ast.Attribute)) and target_name(target) == name:
        values = evaluate(iterable, frame)
        values = getattr(values, "iterable", values)  # within a progress bar
        return (False, values.start, values.step) if isinstance(values, range) else None
    return None


def _first_value(name: str, loop: Any, frame: Any) -> float:
    """Return the number that a counter starts at: a constant of its last assignment before the loop, else zero."""
    tree = parse_file(frame.f_code.co_filename)
    nodes = [tree, *ast.walk(tree)] if tree is not None else []
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and _is_around(node, loop.lineno)]
    # An attribute is assigned in any method, a variable in the function of the loop.
    scope = ast.walk(tree) if "." in name and tree is not None else _within_scope([*nodes[:1], *functions][-1:])
    before = [
        node
        for node in scope
        if isinstance(node, ast.Assign) and node.lineno < loop.lineno and name in map(target_name, node.targets)
    ]
    value = getattr(max(before, key=lambda node: node.lineno, default=None), "value", None)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)) else 0


def _targets(node: Any) -> List[Any]:
    return [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])


def _added(node: Any, name: str) -> Any:
    """Return the expression by which a statement increments a variable."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.value
    total = node.value
    if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add) and target_name(total.left) == name:
        return total.right
    raise UnreadableExpression


def outlives_loop(name: str, frame: Any) -> bool:
    """Return whether a counter is an attribute that keeps its count while the function of a loop is called again."""
    tree = parse_file(frame.f_code.co_filename)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree is not None else []
    resets = [node for function in functions if function.name != "__init__" for node in ast.walk(function)]
    return "." in name and not any(name in map(target_name, getattr(node, "targets", [])) for node in resets)


def _is_around(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= (node.end_lineno or 0))


def _same_branch(condition: ast.If, line: int, other: int) -> bool:
    """Return whether two lines are in the same branch of a condition."""
    branches = (condition.body, condition.orelse)
    return any(
        all(branch[0].lineno <= place <= (branch[-1].end_lineno or 0) for place in (line, other))
        for branch in branches
        if branch
    )


def _within_scope(scopes: List[Any]) -> Iterator[ast.AST]:
    """Yield the statements of scopes without those of functions and classes within them."""
    for scope in scopes:
        for child in ast.iter_child_nodes(scope):
            yield child
            if not isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
                yield from _within_scope([child])
