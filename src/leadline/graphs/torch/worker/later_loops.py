"""What follows the traced steps in the user's source, which the trace does not reach: other training and loaders."""

import ast
from typing import Any, Dict, Iterator, List, Set

from leadline.graphs.torch.worker.expressions import (
    called_name,
    names_read,
    parse_file,
    read_locals,
    scope_of,
    target_name,
)
from leadline.graphs.torch.worker.libraries import user_frames
from leadline.graphs.torch.worker.loops import loops_around, loops_of


def later_training(folder: str, step: str = "backward", within: Any = None) -> str:
    """Return the place of a call after the current loops that trains too, empty if there is none.

    It is a call of the function ``step``, or of the same function of the script that makes the current step.
    ``within`` is a frame of the script that calls a framework's loop: then it is a call like the current one.
    """
    names: Set[str] = {step}
    guards: Dict[str, int] = {}
    frames = list(user_frames(folder, within))
    for number, frame in enumerate(frames):
        tree = parse_file(frame.f_code.co_filename)
        if tree is None:
            continue
        scope, line = scope_of(tree, frame), frame.f_lineno
        loops = loops_around(scope, line)
        inner, guards = guards, _guards(scope, frame)
        if not loops and any(map(loops_of, frames[number + 1 :])):
            names.add(frame.f_code.co_name)  # the rest of this function is within a loop of its callers
            continue
        end = max([line, *[loop.end_lineno or 0 for loop in loops]])
        calls = [node for node in _reachable(scope, line) if isinstance(node, ast.Call)]
        calls = [call for call in calls if call.lineno > end]
        alike = _alike(calls, scope, line) if frame is within else iter(())
        calls = [call for call in calls if not _turns_off(call, scope, line, inner)]
        later = next(alike, None) or next((call for call in calls if called_name(call) in names), None)
        if later is not None:
            return f"line {later.lineno}"
        names.add(frame.f_code.co_name)
    return ""


def _guards(scope: Any, frame: Any) -> Dict[str, int]:
    """Return the parameters of a frame's function that conditions around its current line name, and their places."""
    line, code = frame.f_lineno, frame.f_code
    tests = [
        node.test
        for node in ast.walk(scope)
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    used = names_read(tests)
    names = [name for name in code.co_varnames[: code.co_argcount] if name not in ("self", "cls")]
    return {name: place for place, name in enumerate(names) if name in used}


def _turns_off(call: ast.Call, scope: Any, line: int, guards: Dict[str, int]) -> bool:
    """Return whether a call gives another value than the current one to a parameter that decides on the step."""
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)]
    current = [each for each in calls if each.lineno <= line <= (each.end_lineno or line)]
    same = next((each for each in current if ast.dump(each.func) == ast.dump(call.func)), None)
    return same is not None and any(
        _argument(call, name, place) != _argument(same, name, place) for name, place in guards.items()
    )


def _argument(call: ast.Call, name: str, place: int) -> str:
    """Return the source of an argument of a call, empty for a default."""
    values = [*call.args[place : place + 1], *(word.value for word in call.keywords if word.arg == name)]
    return ast.dump(values[0]) if values else ""


def replaced_loader(folder: str, loader: Any) -> str:
    """Return the place where a condition in the loops around the step replaces the loader, empty if none does."""
    for frame in user_frames(folder):
        loops = loops_of(frame)
        names = {name for name, value in read_locals(frame).items() if value is loader}
        conditions = [node for node in ast.walk(loops[0]) if isinstance(node, ast.If)] if loops and names else []
        parts = [part for condition in conditions for part in ast.walk(condition) if isinstance(part, ast.Assign)]
        for part in parts:
            is_wrapped = not names.isdisjoint(map(target_name, ast.walk(part.value)))
            if not is_wrapped and not names.isdisjoint(map(target_name, part.targets)):
                return f"line {part.lineno}"
    return ""


def _alike(calls: List[ast.Call], scope: Any, line: int) -> Iterator[ast.Call]:
    """Yield the calls of the method of the current one, on the same object or with a keyword of the current one."""
    for current in ast.walk(scope):
        if isinstance(current, ast.Call) and current.lineno <= line <= (current.end_lineno or line):
            words = {word.arg for word in current.keywords} - {None}
            for call in calls:
                is_same = ast.dump(call.func) == ast.dump(current.func)
                shares = called_name(call) == called_name(current) and words & {word.arg for word in call.keywords}
                if called_name(current) in ENTRIES and (is_same or shares):
                    yield call


ENTRIES = ("fit", "train")
"""Methods of the trainers and models of frameworks that make all steps."""


def _reachable(scope: Any, line: int) -> List[Any]:
    """Return the nodes of a scope without functions within it, and other branches of the current conditions."""
    nodes: List[Any] = []
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and child.lineno <= line <= (child.end_lineno or 0):
            branches = (child.body, child.orelse)
            current = [part for part in branches if part and part[0].lineno <= line <= (part[-1].end_lineno or 0)]
            nodes += _reachable(ast.Module(body=current[0] if current else [], type_ignores=[]), line)
        else:
            nodes += [child, *_reachable(child, line)]
    return nodes
