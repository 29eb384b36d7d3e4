"""Read the loops around a training step from the user's source: how often each runs, and what it counts."""

import ast
import contextlib
import itertools
import os
from typing import (
    Any,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from leadline.graphs.torch.worker.expressions import (
    READABLE,
    UnreadableExpression,
    assigned_names,
    called_name,
    evaluate,
    gives_elements,
    imagined_frame,
    names_read,
    parse_file,
    read_locals,
    scope_of,
    source_text,
    target_name,
)
from leadline.graphs.torch.worker.generators import early_end_of
from leadline.graphs.torch.worker.libraries import FrameKey, frame_key, user_frames
from leadline.graphs.torch.worker.loop_bounds import (
    CountedPasses,
    break_bound,
    counted_passes,
    counts_on,
    passes_before,
    steps_at_end,
    while_bound,
)
from leadline.graphs.torch.worker.loop_counters import outlives_loop, varying_increment
from leadline.graphs.torch.worker.loop_lengths import iterations, unwrap
from leadline.graphs.torch.worker.run_conditions import early_end, skipped_by

waiting_frames: List[Any] = []
"""Frames of the user that wait for a process, which runs in place. Their innermost loop is over the processes."""


class EnclosingLoop(NamedTuple):
    """One loop that encloses the current line, and its iterations. Lists of them begin with the outermost.

    ``counts_inner``: The counter goes up in a loop within this one (``while step < max_steps`` around batches).
    ``limit``: Steps within the loop after which it ends, if its length is known too.
    ``may_end``, ``may_skip``: Conditions that may end the loop before it has run ``times``, or leave a step out.
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
    may_skip: str = ""
    joined: bool = False
    varies_with: str = ""
    increment: str = ""
    """What a counter goes up by, of which only the current value is known."""
    names: FrozenSet[str] = frozenset()
    """Names and attributes that the loop reads."""
    limit: Optional[int] = None
    is_drawing: bool = False
    """Each pass draws a batch with ``next``."""
    position: Optional[int] = None
    """Passes before the current one, if a variable counts them."""
    counted: CountedPasses = CountedPasses()
    """What the counter of a ``while`` loop counts."""
    steps_at_end: bool = False
    """The end of the loop makes a step from what accumulated since the last whole one."""
    counts_on: bool = False
    """What accumulates at the end of the loop is part of the first step when it runs again."""
    library: str = ""
    """File of the library that has the loop."""

    @property
    def place(self) -> str:
        """Return what the loop goes over, and where it is."""
        return f"`{self.text}` in line {self.line}" + (f" of {self.library}" if self.library else "")


def enclosing_loops(
    script_folder: str, within: Any = None, trained_at: Mapping[FrameKey, int] = {}
) -> List[EnclosingLoop]:
    """Return the loops around the current call, or around that of a frame, in the user's frames and in libraries'.

    ``trained_at``: The frames of libraries around the last backward pass, and their lines then. Loops count that were
    around it, too: an optimizer has loops of its own.
    """
    loops: List[EnclosingLoop] = []
    caller, around = None, []
    frames = list(user_frames(script_folder, within, trained_at))
    innermost = next((frame for frame in frames if frame_key(frame) not in trained_at), None)
    is_around = True
    for frame in reversed(frames):
        tree = parse_file(frame.f_code.co_filename)
        if tree is None:
            continue
        scope = scope_of(tree, frame)
        nodes = loops_around(scope, frame.f_lineno)
        if frame_key(frame) in trained_at:
            nodes = [node for node in nodes if node in loops_around(scope, trained_at[frame_key(frame)])]
        if any(frame is waiting for waiting in waiting_frames):
            nodes = nodes[:-1]
        pairs = [(node, _describe_loop(node, frame)) for node in nodes]
        is_around &= frame is not innermost
        if frame_key(frame) in trained_at:
            library = os.path.basename(frame.f_code.co_filename)
            # One that calls the script and has no length, as that of a command line, does not repeat the training.
            pairs = [(node, loop._replace(library=library)) for node, loop in pairs if not is_around or _has_end(loop)]
        nodes = [node for node, loop in pairs if not _is_over_optimizers(loop)]
        described = [loop for _, loop in pairs if not _is_over_optimizers(loop)]
        if nodes:  # the scope of the innermost loop is the rest of the one around it
            around_last = nodes[-2] if len(nodes) > 1 else scope
            is_flushed = steps_at_end(nodes[-1], around_last, frame.f_lineno)
            goes_on = counts_on(nodes[-1], around_last, frame.f_lineno)
            described[-1] = described[-1]._replace(steps_at_end=is_flushed, counts_on=goes_on)
        if caller is not None:
            described = [_varying_argument(*pair, frame, caller, around) for pair in zip(described, nodes)]  # noqa: B905
        loops += _join_varying(nodes, described, frame)
        caller, around = frame, nodes
    while len(loops) > 1 and isinstance(loops[-1].iterable, range) and loops[-1].times == 1:
        loops.pop()  # a number of rounds that is one: the loop around it goes on with each step
    return loops


def _has_end(loop: EnclosingLoop) -> bool:
    return loop.is_for or loop.times is not None


def _is_over_optimizers(loop: EnclosingLoop) -> bool:
    """Return whether a loop lets several optimizers make one step."""
    values = loop.iterable if isinstance(loop.iterable, COUNTABLE) and not isinstance(loop.iterable, range) else ()
    parts = [value[-1] if isinstance(value, tuple) and value else value for value in values]
    return bool(parts) and all(hasattr(part, "param_groups") for part in parts)


def _varying_argument(loop: EnclosingLoop, node: Any, frame: Any, caller: Any, around: List[Any]) -> EnclosingLoop:
    """Return a loop with the caller's loop that may change an argument which decides how long this one is."""
    tree = parse_file(caller.f_code.co_filename)
    calls = [part for part in ast.walk(tree) if isinstance(part, ast.Call)] if tree is not None else []
    call = next((call for call in calls if _calls(call, frame, caller.f_lineno)), None)
    if call is None or not around:
        return loop
    names = [name for name in frame.f_code.co_varnames[: frame.f_code.co_argcount] if name not in ("self", "cls")]
    arguments = dict(zip(names, call.args))  # noqa: B905 - Python 3.9 has no strict
    # The method of an element of the caller's loop.
    if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "self") != "self":
        arguments["self"] = call.func.value
    arguments.update({word.arg: word.value for word in call.keywords if word.arg})
    origins = _sources(set(_variables(_bound_of(node), within_calls=True)), frame)
    for name in origins & set(arguments):
        passed = ast.For(target=ast.Name(name), iter=arguments[name], body=[], orelse=[])
        kinds = (DIRECT,) if name == "self" else (DIRECT, INDIRECT)
        outer = next((outer for outer in around if _depends(passed, outer) in kinds), None)
        if outer is not None:
            return loop._replace(varies_with=source_text(outer.iter, caller))
    return loop


def _sources(names: Set[str], frame: Any) -> Set[str]:
    """Return the variables of a frame's function from which some of them are calculated, and those themselves."""
    tree = parse_file(frame.f_code.co_filename)
    nodes = ast.walk(scope_of(tree, frame)) if tree is not None else iter(())
    return _with_origins(names, [node for node in nodes if isinstance(node, ast.Assign)])


def _with_origins(names: Set[str], assignments: List[ast.Assign]) -> Set[str]:
    """Return some variables, and those from which assignments calculate them."""
    for _ in assignments:
        for node in assignments:
            if any(not names.isdisjoint(_variables(target)) for target in node.targets):
                names.update(_variables(node.value, within_calls=True))
    return names


def _calls(call: ast.Call, frame: Any, line: int) -> bool:
    return call.lineno <= line <= (call.end_lineno or line) and called_name(call) == frame.f_code.co_name


def loops_of(frame: Any, line: Optional[int] = None) -> List[Any]:
    """Return the loops of a frame's function around its current line, or another, outermost first."""
    tree = parse_file(frame.f_code.co_filename)
    return [] if tree is None else loops_around(scope_of(tree, frame), line or frame.f_lineno)


def loops_around(scope: ast.AST, line: int) -> List[Any]:
    """Return the loops of this scope whose body holds the line, outermost first."""
    loops: List[Any] = []
    for child in ast.iter_child_nodes(scope):
        if not getattr(child, "lineno", line) <= line <= (getattr(child, "end_lineno", line) or line):
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, (ast.For, ast.While)) and child.body[0].lineno <= line <= (child.body[-1].end_lineno or 0):
            loops.append(child)
        loops.extend(loops_around(child, line))
    return loops


def _describe_loop(node: Any, frame: Any) -> EnclosingLoop:
    text, may_end, may_skip = source_text(_bound_of(node), frame), early_end(node, frame), skipped_by(node, frame)
    bound = break_bound(node, frame)
    limit = bound[0] if bound is not None and (bound[1] or outlives_loop(bound[2], frame)) else None
    if isinstance(node, ast.While):
        times, counts_inner, counter = while_bound(node, frame) or (None, False, "")
        name = f"while {text}"
        counted = counted_passes(node, counter, frame)
        phases = _counted_elements(node.test, frame)
        loop = EnclosingLoop(node.lineno, counter, times, name, phases, False, counts_inner, may_end, limit=limit)
        increment = varying_increment(node, counter, frame)
        loop = loop._replace(position=counted.before, counted=counted, increment=increment, may_skip=may_skip)
        return loop._replace(names=names_read(node.body))
    iterable, count = iterations(node, frame)
    may_end = may_end or early_end_of(unwrap(node.iter, None)[0], frame)
    if not set(assigned_names(node.body)).isdisjoint(_variables(node.iter)):  # a loop is as long as when it began
        iterable, count = _begun.setdefault((id(frame), frame.f_code, node.lineno), (iterable, count))
    name, names = target_name(node.target), names_read(node.body)
    skipped = _skipped_passes(node, iterable, count or 0, frame)
    count, place = (count, passes_before(node, frame)) if not skipped else ((count or 0) - skipped, None)
    return EnclosingLoop(
        node.lineno, name, count, text, iterable, may_end=may_end, may_skip="" if skipped else may_skip, names=names,
        limit=limit, position=place,
    )  # fmt: skip


def _counted_elements(test: Any, frame: Any) -> Any:
    """Return the list whose length the condition of a ``while`` loop names as its bound, if any."""
    bounds = [part for part in getattr(test, "comparators", []) if called_name(part) == "len" and part.args]
    with contextlib.suppress(UnreadableExpression):
        return evaluate(bounds[0].args[0], frame) if bounds else None
    return None


_begun: Dict[Tuple[Any, ...], Tuple[Any, Optional[int]]] = {}
"""What loops iterate over and how often, by frame, code and line, whose own body assigns a variable of that."""


def _skipped_passes(loop: ast.For, iterable: Any, count: int, frame: Any) -> int:
    """Return the passes that end at an ``if ...: continue`` above the current line, which a counter decides."""
    conditions = [
        node.test
        for node in loop.body
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue) and node.lineno < frame.f_lineno
    ]
    values: Any = iterable if isinstance(iterable, COUNTABLE) else range(count)
    counter = loop.target if values is iterable else None
    if isinstance(loop.target, ast.Tuple) and called_name(loop.iter) == "enumerate" and len(loop.target.elts) > 1:
        index, element = loop.target.elts[:2]
        counter = ast.Tuple([index, element if values is iterable else ast.Name("_")])
        call: Any = loop.iter
        starts = [*call.args[1:], *(word.value for word in call.keywords)]
        first: Any = starts[0].value if starts and isinstance(starts[0], ast.Constant) else 0
        values = [*enumerate(values, first)] if len(values) <= MOST_ELEMENTS and len(starts) == bool(first) else []
    if not conditions or counter is None or len(values) > MOST_ELEMENTS:
        return 0
    changed = set(assigned_names(loop.body))
    conditions = [test for test in conditions if changed.isdisjoint(_variables(test))]
    names = dict(read_locals(frame))
    place = imagined_frame(names, frame.f_globals, frame.f_code.co_filename)
    try:
        return sum(
            _bind(counter, value, names) and any(evaluate(test, place) for test in conditions)
            for value in itertools.islice(values, count)
        )
    except UnreadableExpression:
        return 0


def _bound_of(loop: Any) -> Any:
    """Return the expression that decides how often a loop runs."""
    return loop.test if isinstance(loop, ast.While) else loop.iter


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
            times = None if kind == INDIRECT else _total(nodes[first : last + 1], frame)
            is_iterator = loops[first].times is not None and not isinstance(loops[first].iterable, COUNTABLE)
            if kind == INDIRECT or (times is None and is_iterator and loops[last].times is not None):
                varying = loops[last]._replace(varies_with=loops[first].text)
                return [*_join_varying(nodes[:last], loops[:last], frame), varying, *loops[last + 1 :]]
            text = "` and `".join(loop.text for loop in loops[first : last + 1])
            joined = loops[last]._replace(text=text, times=times, line=nodes[first].lineno, joined=True)
            return [*_join_varying(nodes[:first], loops[:first], frame), joined, *loops[last + 1 :]]
    return loops


def _is_over_names(loop: EnclosingLoop) -> bool:
    names = loop.iterable
    return isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)


DIRECT, INDIRECT = "direct", "through assignments or calls"


def _depends(inner: Any, outer: Any) -> str:
    """Return how the length of a loop depends on the variables of an outer one, empty if it does not."""
    # Of a `while` loop, what its body adds to: `stored` in `stored += n`, on which `range(stored // 64)` depends.
    added = [node.target for node in ast.walk(outer) if isinstance(node, ast.AugAssign)]
    parts = [outer.target] if isinstance(outer, ast.For) else [part for part in added if isinstance(part, ast.Name)]
    targets = {name for part in parts for name in _variables(part)}
    names = set(_variables(_bound_of(inner)))
    if not names.isdisjoint(targets):
        return DIRECT
    names.update(_variables(_bound_of(inner), within_calls=True))
    names = _with_origins(names, [node for node in ast.walk(outer) if isinstance(node, ast.Assign)])
    return "" if names.isdisjoint(targets) else INDIRECT


def _variables(node: Any, *, within_calls: bool = False) -> Iterator[str]:
    """Yield the variables that decide how long a value is, without those that calls of the user's functions take."""
    if isinstance(node, ast.Name):
        yield node.id
        return
    parts: Sequence[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and gives_elements(called_name(node)):
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
        bound = while_bound(nodes[0], frame)
        return bound[0] if bound is not None and len(nodes) == 1 else None
    values, count = iterations(nodes[0], frame)
    if len(nodes) == 1 or count is None:
        return count
    target = unwrap(nodes[0].iter, nodes[0].target)[1]
    if not isinstance(values, COUNTABLE) or target is None or count != len(values):
        return None
    chosen = itertools.islice(values, 0, None, -(-count // MOST_ELEMENTS))
    totals: List[int] = []
    for value in chosen:
        names = dict(read_locals(frame))
        if not _bind(target, value, names):
            return None
        total = _total(nodes[1:], imagined_frame(names, frame.f_globals, frame.f_code.co_filename))
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
