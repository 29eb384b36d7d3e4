"""The command line of a tool's call, which gives the same answer."""

from collections.abc import Mapping, Sequence
from typing import Any

LISTS = {"systems": "systems", "devices": "devices", "history": "history", "models": "model"}
"""Tool → command with ``list`` and ``show``."""
NAMED = {"systems": "name", "devices": "name", "history": "run", "models": "name"}
"""Tool → the argument that names one of its things."""
RENAMED = {"memory_bytes": "memory", "time_s": "time", "deadline_s": "deadline"}
UNITS = {"memory_bytes": "B", "time_s": "s", "deadline_s": "s"}


def command_line(tool: str, arguments: Mapping[str, Any], subject: Sequence[str] = ()) -> list[str]:
    """Return the words after ``leadline`` that ask for the same as a tool.

    Args:
        tool: Name of the tool.
        arguments: Its arguments.
        subject: Words of its workload: a file, or a command with a script.
    """
    rest = dict(arguments)
    if tool in LISTS:
        name = rest.pop(NAMED[tool], None)
        return [LISTS[tool], *(["list"] if name is None else ["show", name]), *_options(rest)]
    if tool == "campaigns":
        return ["campaign", "status", *filter(None, [rest.get("name")])]
    if tool in ("jobs", "logs", "explain"):
        return [tool, *filter(None, [rest.pop("job", None)]), *_options(rest)]
    if tool in ("cancel", "approve"):
        return [tool, *rest.pop("jobs", []), *_options(rest)]
    if tool == "submit":
        command = rest.pop("command")
        return ["submit", *_options(rest), "--", *command]
    return [tool, *_options(rest, but="workload"), *(["--"] if len(subject) > 1 else []), *subject]


def _options(arguments: Mapping[str, Any], *, but: str = "") -> list[str]:
    words: list[str] = []
    for name, value in arguments.items():
        if name == but or value is False:
            continue
        flag = f"--{RENAMED.get(name, name).replace('_', '-')}"
        many: Sequence[Any] = value if isinstance(value, list) else [value]
        for one in many:
            words += [flag] if value is True else [flag, f"{one}{UNITS.get(name, '')}"]
    return words
