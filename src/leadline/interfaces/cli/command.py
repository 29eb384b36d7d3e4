"""How every verb is declared and explains itself: a Typer application whose help stands in named sections."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from leadline.interfaces.cli.usage_errors import placeholder

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
GENERAL = "Options"
"""The section of an option that names none with ``rich_help_panel``; the last one."""


class CommandApp(typer.Typer):
    """The Typer application of one verb: plain text, no completion, sections, and a default beside every option."""

    def __init__(self, *, help: str | None = None, group: bool = False) -> None:  # noqa: A002 - Typer's own name
        super().__init__(
            add_completion=False, rich_markup_mode=None, help=help, no_args_is_help=group, context_settings=CONTEXT
        )

    def command(self, name: str | None = None, **more: Any) -> Callable[[F], F]:  # noqa: ANN401
        """Declare a command of the verb, as Typer does, but for the sections of its help."""
        return super().command(name, **{"cls": SectionedCommand, "context_settings": CONTEXT, **more})


class SectionedCommand(TyperCommand):
    """A command whose help shows its arguments and options in sections, each in the order of its parameters."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - Typer's own are private
        """Write the line that says how the command is typed."""
        formatter.write_usage(ctx.command_path, format_usage(self))

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write every section; the general options come last."""
        for title, rows in option_sections(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write what stands at the end, such as examples, line by line as it is."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


def format_usage(command: Any) -> str:  # noqa: ANN401
    """Return what stands after a command's name: ``[OPTIONS] NAME``; what may be left out stands in brackets."""
    words = [placeholder(one) for one in _arguments(command)]
    optional = [not one.required and "|" not in word for one, word in zip(_arguments(command), words, strict=True)]
    return " ".join(["[OPTIONS]", *(f"[{word}]" if may else word for word, may in zip(words, optional, strict=True))])


def option_sections(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:  # noqa: ANN401
    """Return title → (parameter, what it is with its default), for people and for the reference."""
    found: dict[str, list[tuple[str, str]]] = {}
    if arguments := [(placeholder(one), _described(one)) for one in _arguments(command)]:
        found["Arguments"] = arguments
    general: list[tuple[str, str]] = []
    for one in command.get_params(ctx):
        if one.param_type_name != "option" or one.hidden:
            continue
        title = getattr(one, "rich_help_panel", None)
        rows = found.setdefault(title, []) if title else general
        rows.append((_written(one), _described(one)))
    return {**found, GENERAL: general}


def _arguments(command: Any) -> list[Any]:  # noqa: ANN401
    return [one for one in command.params if one.param_type_name == "argument"]


def _written(option: Any) -> str:  # noqa: ANN401
    """Return an option's names, the short one first, and what stands for its value."""
    names = ", ".join(sorted(option.opts, key=len))
    return names if option.is_flag or option.count else f"{names} {placeholder(option)}"


def _described(parameter: Any) -> str:  # noqa: ANN401
    """Return what a parameter is, and in brackets its default or that it is required."""
    said = (parameter.help or "").strip()
    shown = getattr(parameter, "show_default", False)
    if isinstance(shown, str):
        return f"{said} [default: {shown}]"
    if parameter.required:
        return f"{said} [required]"
    default = parameter.default
    if shown and default is not None and not callable(default) and not getattr(parameter, "is_flag", False):
        return f"{said} [default: {default:g}]" if isinstance(default, float) else f"{said} [default: {default}]"
    return said
