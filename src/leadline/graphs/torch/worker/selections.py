"""How many elements a mask selects, which the script tells where it views the selection in a shape."""

import ast
import math
from typing import Any, Dict, List, Optional

from leadline.graphs.torch.worker.conditions import calling_frame
from leadline.graphs.torch.worker.expressions import UnreadableExpression, called_name, evaluate, parse_file, scope_of


def viewed_elements() -> Optional[int]:
    """Return the elements of ``x[mask].view(rows, columns)`` in the line that runs; ``None`` without a whole shape."""
    frame = calling_frame()
    for node in () if frame is None else _views_of(frame):
        if node.lineno <= frame.f_lineno <= (node.end_lineno or 0):
            is_tuple = len(node.args) == 1 and isinstance(node.args[0], (ast.Tuple, ast.List))
            sizes = node.args[0].elts if is_tuple else node.args  # type: ignore[attr-defined]
            try:
                shape = [evaluate(size, frame) for size in sizes]
            except UnreadableExpression:
                return None
            return math.prod(shape) if all(isinstance(size, int) and size > 0 for size in shape) else None
    return None


_views: Dict[Any, List[ast.Call]] = {}


def _views_of(frame: Any) -> List[ast.Call]:
    """Return the calls in a frame's function that view a selection in a shape. A step asks for them often."""
    if frame.f_code not in _views:
        tree = parse_file(frame.f_code.co_filename)
        calls = [node for node in ast.walk(scope_of(tree, frame) if tree is not None else ast.Module([], []))
                 if isinstance(node, ast.Call) and called_name(node) in ("view", "reshape")]  # fmt: skip
        _views[frame.f_code] = [call for call in calls if _is_selection(getattr(call.func, "value", None))]
    return _views[frame.f_code]


def _is_selection(node: Any) -> bool:
    return isinstance(node, ast.Subscript) or called_name(node) == "masked_select"
