"""Leadline predicts the time, memory and cost of an AI job before it runs.

The public API is ``__all__``; everything else is private and may move. Importing this package loads nothing heavy: each
name is imported when it is first used.
"""

TYPE_CHECKING = False
"""Type checkers take it for True; importing it from typing would cost more than the rest of this module."""

if TYPE_CHECKING:
    from leadline.app.jobs.plane_options import PlaneOptions
    from leadline.core.errors import LeadlineError
    from leadline.core.recommendation import RiskWeights
    from leadline.interfaces.python.jobs import Job, jobs, submit
    from leadline.interfaces.python.verbs import devices, estimate, fit, recommend, systems, train

__version__ = "0.1.0"

__all__ = [
    "Job",
    "LeadlineError",
    "PlaneOptions",
    "RiskWeights",
    "devices",
    "estimate",
    "fit",
    "jobs",
    "recommend",
    "submit",
    "systems",
    "train",
]

_HOMES = {
    "Job": "leadline.interfaces.python.jobs",
    "jobs": "leadline.interfaces.python.jobs",
    "submit": "leadline.interfaces.python.jobs",
    "LeadlineError": "leadline.core.errors",
    "PlaneOptions": "leadline.app.jobs.plane_options",
    "RiskWeights": "leadline.core.recommendation",
}
"""The module of each public name that is not in ``interfaces.python.verbs``."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'leadline' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - importing leadline stays as cheap as possible

    value = getattr(import_module(_HOMES.get(name, "leadline.interfaces.python.verbs")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names for completion in a notebook."""
    return sorted([*__all__, "__version__"])
