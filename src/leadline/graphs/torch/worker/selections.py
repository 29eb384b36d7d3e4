"""How many elements a mask selects, which the script tells where it views the selection in a shape."""

import ast
import math
from typing import Any, Optional

from leadline.graphs.torch.worker.conditions import calling_frame
from leadline.graphs.torch.worker.expressions import UnreadableExpression, called_name, evaluate, parse_file, scope_of


def viewed_elements() -> Optional[int]:
    """Return the elements of ``x[mask].view(rows, columns)`` in the line that runs; ``None`` without a whole shape."""
    frame = calling_frame()
    tree = None if frame is None else parse_file(frame.f_code.co_filename)
    for node in ast.walk(scope_of(tree, frame)) if tree is not None else ():
        if not isinstance(node, ast.Call) or called_name(node) not in ("view", "reshape"):
            continue
        if node.lineno <= frame.f_lineno <= (node.end_lineno or 0) and _is_selection(getattr(node.func, "value", None)):
            is_tuple = len(node.args) == 1 and isinstance(node.args[0], (ast.Tuple, ast.List))
            sizes = node.args[0].elts if is_tuple else node.args  # type: ignore[attr-defined]
            try:
                shape = [evaluate(size, frame) for size in sizes]
            except UnreadableExpression:
                return None
            return math.prod(shape) if all(isinstance(size, int) and size > 0 for size in shape) else None
    return None


def _is_selection(node: Any) -> bool:
    return isinstance(node, ast.Subscript) or called_name(node) == "masked_select"
