"""Read the variables of running functions without keeping alive what they hold."""

import inspect
import sys
from typing import Any, Dict


def locals_of(frame: Any) -> Dict[str, Any]:
    """Return the local variables of a frame.

    Before Python 3.13 a function's ``f_locals`` is a copy that the frame keeps, and with it every tensor a variable
    held when it was last read; the copy is emptied here, so that memory is given back when the script lets go of it.
    """
    kept = frame.f_locals
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return dict(kept)
    names = dict(kept)
    kept.clear()
    return names
