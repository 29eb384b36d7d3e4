"""How many elements a mask selects, which the script tells where it views the selection in a shape."""

import ast
import functools
import math
from typing import Any, List, Optional

from leadline.graphs.torch.worker.conditions import calling_frame
from leadline.graphs.torch.worker.expressions import UnreadableExpression, called_name, evaluate, parse_file, scope_of


def viewed_elements() -> Optional[int]:
    """Return the elements of ``x[mask].view(rows, columns)`` in the line that runs; ``None`` without a whole shape."""
    frame = calling_frame()
    tree = None if frame is None else parse_file(frame.f_code.co_filename)
    for node in _views(scope_of(tree, frame)) if tree is not None else ():
        if node.lineno <= frame.f_lineno <= (node.end_lineno or 0):
            is_tuple = len(node.args) == 1 and isinstance(node.args[0], (ast.Tuple, ast.List))
            sizes = node.args[0].elts if is_tuple else node.args  # type: ignore[attr-defined]
            try:
                shape = [evaluate(size, frame) for size in sizes]
            except UnreadableExpression:
                return None
            return math.prod(shape) if all(isinstance(size, int) and size > 0 for size in shape) else None
    return None


@functools.cache  # a step asks for them often
def _views(scope: ast.AST) -> List[ast.Call]:
    """Return the calls within a function that view a selection in a shape."""
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)]
    views = [call for call in calls if called_name(call) in ("view", "reshape")]
    return [view for view in views if _is_selection(getattr(view.func, "value", None))]


def _is_selection(node: Any) -> bool:
    return isinstance(node, ast.Subscript) or called_name(node) == "masked_select"
