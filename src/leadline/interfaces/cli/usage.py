"""Answer a wrong command line in one sentence: what was typed, why it will not do, and what to write instead."""

from collections.abc import Callable, Sequence
from typing import Any

from leadline.interfaces.cli.hints import unknown_option

OWN_COMMAND = "COMMAND"
"""Stands in the metavar of an argument after which the user's own command may stand."""

_EXPECTED = {
    "integer": "a whole number, such as 8",
    "int": "a whole number, such as 8",
    "number": "a number, such as 2.5",
    "float": "a number, such as 2.5",
}
"""A word of Typer's reason → what it asks for."""


def usage_sentence(error: Any, command: str, arguments: Sequence[str]) -> str:  # noqa: ANN401 - Typer's own are private
    """Return one sentence for a usage error that Typer raised while it read ``arguments`` of ``command``.

    ``command`` is what stands before the arguments, such as ``leadline systems``. Typer's exceptions are told apart by
    their names: it keeps its own copy of them, and that has moved from one release to the next.
    """
    context = error.ctx
    path = context.command_path if context else command
    answer = _ANSWERS.get(type(error).__name__, _other)
    return answer(error, path, arguments)


def _unknown_option(error: Any, path: str, arguments: Sequence[str]) -> str:  # noqa: ANN401
    parameters = error.ctx.command.params if error.ctx else []
    options = [option for one in parameters for option in getattr(one, "opts", ())]
    typed = _whole(error.option_name, arguments)
    return unknown_option(typed, options, path, takes_command=any(map(_takes_command, parameters)))


def _missing(error: Any, path: str, _: Sequence[str]) -> str:  # noqa: ANN401
    name = _shown(error.param) if error.param else "an argument"
    return f"{name} is missing: write {path} {name}; {path} --help says what it is"


def _other(error: Any, path: str, _: Sequence[str]) -> str:  # noqa: ANN401
    message = str(error.format_message()).rstrip(".")
    if message.startswith("Got unexpected extra argument"):
        extra = message.rpartition("(")[2].rstrip(")")
        return f"{extra!r} is too much: put a name that holds spaces in quotes; {path} --help shows what it takes"
    if message.startswith("No such command"):
        return _unknown_command(message, error.ctx, path)
    return f"{message}; {path} --help shows what it takes"


def _whole(option: str, arguments: Sequence[str]) -> str:
    """Return the option as it was typed: of ``-bs`` Typer names the first letter alone."""
    if option.startswith("--"):
        return option
    typed = [word for word in arguments if word.startswith(option) and not word.startswith("--")]
    return typed[0] if typed else option


def _takes_command(parameter: Any) -> bool:  # noqa: ANN401
    return OWN_COMMAND in (getattr(parameter, "metavar", None) or "")


def placeholder(parameter: Any) -> str:  # noqa: ANN401
    """Return what stands for a parameter's value in help: its metavar, else its name in capitals."""
    return str(parameter.metavar or parameter.name.upper().replace("_", "-"))


def _shown(parameter: Any) -> str:  # noqa: ANN401
    """Return how a parameter is written: its longest option, or what stands for an argument."""
    options = [option for option in getattr(parameter, "opts", ()) if option.startswith("-")]
    return max(options, key=len) if options else placeholder(parameter)


def _bad_value(error: Any, path: str, arguments: Sequence[str]) -> str:  # noqa: ANN401
    if error.param is None:
        return _other(error, path, arguments)
    name, reason = _shown(error.param), str(error.message).rstrip(".")
    value = _given(error.param, arguments)
    named = f"{name} is not usable" if value is None else f"{name} is {value!r}"
    if "greater than or equal to" in reason:
        return f"{named}, but it must be at least {reason.rpartition(' ')[2]}"
    expected = next((what for word, what in _EXPECTED.items() if word in reason), None)
    return f"{named}, but it must be {expected}" if expected else f"{named}: {reason}"


def _bad_option(error: Any, path: str, _: Sequence[str]) -> str:  # noqa: ANN401
    if "does not take a value" in error.format_message():
        return f"{error.option_name} takes no value: write it alone; {path} --help says more"
    return f"{error.option_name} stands without a value: write one after it; {path} --help says which"


def _unknown_command(message: str, context: Any, path: str) -> str:  # noqa: ANN401
    from leadline.core.errors import UnknownName  # noqa: PLC0415 - difflib loads only when needed

    typed = message.split("'")[1] if "'" in message else message
    known = sorted(getattr(context.command, "commands", {}))
    return str(UnknownName(f"command of {path}", typed, known))


def _given(parameter: Any, arguments: Sequence[str]) -> str | None:  # noqa: ANN401
    """Return what was typed for an option; ``None`` for an argument, which has no name to find it by."""
    for position, word in enumerate(arguments):
        name, joined, value = word.partition("=")
        if name.startswith("-") and name in parameter.opts:
            return value if joined else next(iter(arguments[position + 1 :]), None)
    return None


_ANSWERS: dict[str, Callable[[Any, str, Sequence[str]], str]] = {
    "NoSuchOption": _unknown_option,
    "MissingParameter": _missing,
    "BadParameter": _bad_value,
    "BadOptionUsage": _bad_option,
}
"""Name of Typer's exception → what answers it."""
