"""Refuse values in a journal that no Leadline wrote: impossible times and numbers."""

from leadline.core.frozen import Frozen
from leadline.execution.clock import epoch_s

MAX_NUMBER = 1e18
"""No time, size or count in a journal is larger."""
_NEVER_NEGATIVE = (
    "_s", "_bytes", "_bytes_per_node", "nodes", "number", "index", "attempts", "steps", "epochs", "times",
)  # fmt: skip
"""Ends of the names of such numbers."""
_TIMES = ("_at", "not_before")
"""Ends of the names of times in ISO 8601."""


def check_value(name: str, value: object) -> None:
    """Refuse impossible times and numbers in a value, and in the values and sequences of values that it holds.

    Raises:
        ValueError: the name of one of them, and the value.
    """
    if value is None:
        return
    if isinstance(value, str):
        if value and name.endswith(_TIMES):
            epoch_s(value)
    elif isinstance(value, Frozen):
        for field_name in value.__struct_fields__:
            check_value(field_name, getattr(value, field_name))
    elif isinstance(value, tuple):
        for item in value:
            check_value(name, item)
    elif isinstance(value, int | float) and (
        abs(value) > MAX_NUMBER or (value < 0 and name.endswith(_NEVER_NEGATIVE)) or name.endswith(_TIMES)
    ):
        raise ValueError(f"{name} is {value:.6g}")
