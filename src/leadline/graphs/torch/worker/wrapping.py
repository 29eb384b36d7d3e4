"""Wrap functions and methods of torch and the standard library, to record their calls."""

import functools
from typing import Any, Callable


def call_after(owner: Any, name: str, record: Callable[..., None]) -> None:
    """Call ``record(result, *args, **kwargs)`` after each call of ``owner.name``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        record(result, *args, **kwargs)
        return result

    setattr(owner, name, call)
