"""The base of every command: a Typer application whose help is grouped into sections."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from leadline.interfaces.cli.usage_errors import placeholder

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
GENERAL = "Options"
"""Section of options without ``rich_help_panel``; it comes last."""


class CommandApp(typer.Typer):
    """The Typer application of one command: plain text, no completion, and a default for every option."""

    def __init__(self, *, help: str | None = None, group: bool = False) -> None:  # noqa: A002 - Typer's own name
        super().__init__(
            add_completion=False, rich_markup_mode=None, help=help, no_args_is_help=group, context_settings=CONTEXT
        )

    def command(self, name: str | None = None, **more: Any) -> Callable[[F], F]:  # noqa: ANN401
        """Declare a command as Typer does, with help in sections."""
        return super().command(name, **{"cls": SectionedCommand, "context_settings": CONTEXT, **more})


class SectionedCommand(TyperCommand):
    """A command whose help has sections, each in the order of the parameters."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - Typer's own are private
        """Write the usage line."""
        formatter.write_usage(ctx.command_path, format_usage(self))

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write every section; general options come last."""
        for title, rows in option_sections(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write the examples without wrapping."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


def format_usage(command: Any) -> str:  # noqa: ANN401
    """Return the usage after a command's name, such as ``[OPTIONS] NAME``; optional arguments are in brackets."""
    words = [placeholder(argument) for argument in _arguments(command)]
    optional = [
        not argument.required and "|" not in word for argument, word in zip(_arguments(command), words, strict=True)
    ]
    return " ".join(["[OPTIONS]", *(f"[{word}]" if may else word for word, may in zip(words, optional, strict=True))])


def option_sections(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:  # noqa: ANN401
    """Return section → (parameter, help with its default), for the help and the reference."""
    titled: dict[str, list[tuple[str, str]]] = {}
    if arguments := [(placeholder(argument), _describe(argument)) for argument in _arguments(command)]:
        titled["Arguments"] = arguments
    general: list[tuple[str, str]] = []
    for param in command.get_params(ctx):
        if param.param_type_name != "option" or param.hidden:
            continue
        title = getattr(param, "rich_help_panel", None)
        rows = titled.setdefault(title, []) if title else general
        rows.append((_option_names(param), _describe(param)))
    return {**titled, GENERAL: general}


def _arguments(command: Any) -> list[Any]:  # noqa: ANN401
    return [param for param in command.params if param.param_type_name == "argument"]


def _option_names(option: Any) -> str:  # noqa: ANN401
    """Return an option's names, the short one first, and its metavar."""
    names = ", ".join(sorted(option.opts, key=len))
    return names if option.is_flag or option.count else f"{names} {placeholder(option)}"


def _describe(parameter: Any) -> str:  # noqa: ANN401
    """Return a parameter's help, and its default or ``[required]``."""
    description = (parameter.help or "").strip()
    default_text = getattr(parameter, "show_default", False)
    if isinstance(default_text, str):
        return f"{description} [default: {default_text}]"
    if parameter.required:
        return f"{description} [required]"
    default = parameter.default
    if default_text and default is not None and not callable(default) and not getattr(parameter, "is_flag", False):
        return (
            f"{description} [default: {default:g}]"
            if isinstance(default, float)
            else f"{description} [default: {default}]"
        )
    return description
