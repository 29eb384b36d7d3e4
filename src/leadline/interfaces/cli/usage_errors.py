"""Errors of a wrong command line: Click's own message, with better suggestions for an unknown option."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import click

COMMAND_PLACEHOLDER = "COMMAND"
"""Part of the metavar of an argument that may be the user's own command."""

SIMILARITY = 0.7
"""Minimum similarity of spelling (0 to 1) between an unknown option and a suggestion."""


@cache
def option_synonyms() -> dict[str, list[str]]:
    """Return option → names of other tools for it, from ``synonyms.toml``."""
    import tomllib  # noqa: PLC0415 - only a wrong option needs it

    return tomllib.loads(Path(__file__).with_name("synonyms.toml").read_text(encoding="utf-8"))


def suggest_options(typed: str, options: Iterable[str]) -> list[str]:
    """Return the ``options`` that ``typed`` may mean, the best first: by synonym, by prefix, then by spelling."""
    long_options = [option for option in options if option.startswith("--")]
    word = typed.lstrip("-").partition("=")[0].replace("_", "-").casefold()
    if f"--{word}" in long_options:
        return [f"--{word}"]
    synonyms = [option for option in long_options if word in option_synonyms().get(option, ())]
    prefixed = [option for option in long_options if len(word) > 2 and _is_prefix(word, option)]
    # Spelling comes last: by letters alone, Click suggests --model for --mem.
    similar = get_close_matches(word, [option[2:] for option in long_options], n=1, cutoff=SIMILARITY)
    return synonyms or prefixed or [f"--{name}" for name in similar]


def describe_usage_error(error: click.ClickException, path: str, arguments: Sequence[str]) -> str:
    """Return one sentence for an error of Click while it parsed ``arguments`` of the command ``path``."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else path
    if isinstance(error, click.NoSuchOption):
        parameters = context.command.params if context else []
        typed = _as_typed(error.option_name, arguments)
        suggestions = suggest_options(typed, [option for parameter in parameters for option in parameter.opts])
        hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else f"run {path} --help for usage"
        takes_command = any(COMMAND_PLACEHOLDER in str(parameter.metavar) for parameter in parameters)
        note = " (put options of your own command after --)" if takes_command else ""
        return f"no such option: {typed}; {hint}{note}"
    message = " ".join(error.format_message().split()).rstrip(".?")
    return f"{message[0].lower()}{message[1:]}; run {path} --help for usage"


def _is_prefix(word: str, option: str) -> bool:
    return any(name.startswith(word) for name in (option[2:], *option_synonyms().get(option, ())))


def _as_typed(option: str, arguments: Sequence[str]) -> str:
    """Return the option as it was typed; of ``-bs``, Click reports only ``-b``."""
    if option.startswith("--"):
        return option
    return next((word for word in arguments if word.startswith(option) and not word.startswith("--")), option)
