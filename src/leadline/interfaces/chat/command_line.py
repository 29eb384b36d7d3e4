"""The command line of a tool's call, which gives the same answer."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.app.machines.targets import LOCAL
from leadline.core.errors import excerpt

LISTS = {"systems": "systems", "devices": "devices", "history": "history", "models": "model"}
"""Tool → command with ``list`` and ``show``."""
NAMED = {"systems": "name", "devices": "name", "history": "run", "models": "name"}
"""Tool → the argument that names a single system, device, run or model."""
RENAMED = {"memory_bytes": "memory", "time_s": "time", "deadline_s": "deadline", "values": "set"}
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
        return [LISTS[tool], *(["list"] if name is None else ["show"]), *_options(rest), *_names(name)]
    if tool in ("campaigns", "pipelines"):
        return [tool.removesuffix("s"), "status", *_names(rest.get("name"))]
    if tool in ("jobs", "logs", "explain"):
        job = rest.pop("job", None)
        return [tool, *_options(rest), *_names(job)]
    if tool in ("cancel", "approve"):
        jobs = rest.pop("jobs", [])
        return [tool, *_options(rest), *_names(*jobs)]
    if tool == "submit":
        command = rest.pop("command")
        # Without it, the command would run a local job itself, and answer when the job has ended.
        detached = ["--detach"] if all(place.casefold() == LOCAL for place in rest.get("on", ())) else []
        return ["submit", *detached, *_options(rest), "--", *command]
    return [tool, *_options(rest, but="workload"), *(["--"] if len(subject) > 1 else []), *subject]


def shown_command(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the command line for the user's decision: nothing in it is hidden by a control character or a cut."""
    line = shlex.join(["leadline", *command_line(tool, arguments)])
    return excerpt(line, len(line))


def _names(*names: str | None) -> list[str]:
    """Return the names that were given; a name that begins as an option does is none after ``--``."""
    given = [name for name in names if name]
    return ["--", *given] if any(name.startswith("-") for name in given) else given


def _options(arguments: Mapping[str, Any], *, but: str = "") -> list[str]:
    words: list[str] = []
    for name, value in arguments.items():
        if name == but or value is False:
            continue
        flag = f"--{RENAMED.get(name, name).replace('_', '-')}"
        for text in _texts(value):
            words += [flag] if value is True else [flag, f"{text}{UNITS.get(name, '')}"]
    return words


def _texts(value: object) -> list[object]:
    """Return the values of an option: one, several, or ``NAME=VALUE`` of each parameter."""
    if isinstance(value, Mapping):
        return [
            f"{name}={','.join(map(str, values)) if isinstance(values, list) else values}"
            for name, values in value.items()
        ]
    return value if isinstance(value, list) else [value]
