"""Commands, options and arguments as Click has them, with help in sections and defaults in words.

Errors of a wrong command line are Click's own, with better suggestions for an unknown option.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

import click
from click.shell_completion import CompletionItem

from leadline.core.errors import LeadlineError

Decorator = Callable[[Any], Any]
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
ARGUMENTS, GENERAL = "Arguments", "Options"
"""The first section of a help page, and the last one."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""

FILE = click.Path(path_type=Path, readable=False)
"""A path; the verbs themselves check it, with messages that say what to do."""
COMMAND_PLACEHOLDER = "COMMAND"
"""Part of the metavar of an argument that may be the user's own command."""
SIMILARITY = 0.7
"""Minimum similarity of spelling (0 to 1) between an unknown option and a suggestion."""


class SectionOption(click.Option):
    """An option of a section of the help."""

    def __init__(self, *declarations: Any, section: str = GENERAL, **more: Any) -> None:  # noqa: ANN401
        super().__init__(*declarations, **more)
        self.section = section


class DescribedArgument(click.Argument):
    """An argument with a help text."""

    section = ARGUMENTS

    def __init__(self, *declarations: Any, description: str, **more: Any) -> None:  # noqa: ANN401
        super().__init__(*declarations, **more)
        # Not named help: from 8.5 on, Click would list the arguments a second time.
        self.description = description

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002
        """Return the row of the help."""
        return str(self.metavar), self.description


class SectionedCommand(click.Command):
    """A command whose help has sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every section."""
        for title, rows in option_sections(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, as it is."""
        if text := command_epilog(self, ctx):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"\b\n{text}")


class CommandGroup(click.Group):
    """A group of such commands."""

    command_class = SectionedCommand

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands as they were declared; Click's own would sort them."""
        return list(self.commands)


def option_sections(command: click.Command, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Return section → (parameter, help with its default), for the help and the reference."""
    sections: dict[str, list[tuple[str, str]]] = {ARGUMENTS: []}
    for parameter in command.get_params(ctx):
        if record := parameter.get_help_record(ctx):
            sections.setdefault(getattr(parameter, "section", GENERAL), []).append(record)
    general = sections.pop(GENERAL)
    return {title: rows for title, rows in {**sections, GENERAL: general}.items() if rows}


@cache
def read_table(name: str) -> dict[str, Any]:
    """Return ``examples.toml`` (command → lines) or ``synonyms.toml`` (option → names of other tools for it)."""
    import tomllib  # noqa: PLC0415 - only a help page or a wrong option needs it

    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def command_epilog(command: click.Command, ctx: click.Context) -> str:
    """Return the end of a command's help: its own text, else its examples."""
    lines = read_table("examples").get(ctx.command_path.removeprefix("leadline "), "")
    return command.epilog or (f"Examples:\n{indent(lines.rstrip(), '  ')}" if lines else "")


def command(name: str, **more: Any) -> Callable[[Any], SectionedCommand]:  # noqa: ANN401
    """Declare a command; its examples are in ``examples.toml``."""
    context = {**CONTEXT, **more.pop("context_settings", {})}
    return click.command(name, cls=SectionedCommand, context_settings=context, **more)


def group(name: str) -> Callable[[Any], CommandGroup]:
    """Declare a group of commands."""
    return click.group(name, cls=CommandGroup, context_settings=CONTEXT)


def option(
    names: str,
    metavar: str | None,
    description: str,
    default_text: str | bool = True,
    **more: Any,  # noqa: ANN401
) -> Decorator:
    """Declare an option with a value; ``names`` are separated by spaces, as in ``"-o --out"``."""
    return click.option(
        *names.split(), cls=SectionOption, metavar=metavar, help=description, show_default=default_text, **more
    )


def flag(names: str, description: str, section: str = GENERAL) -> Decorator:
    """Declare an option without a value."""
    return click.option(*names.split(), cls=SectionOption, is_flag=True, help=description, section=section)


def argument(name: str, metavar: str, description: str, default_text: str = "", **more: Any) -> Decorator:  # noqa: ANN401
    """Declare an argument."""
    default = f" [default: ({default_text})]" if default_text else ""
    optional = more.get("required") is False or "default" in more
    shown = f"[{metavar}]" if optional and "|" not in metavar else metavar
    return click.argument(name, cls=DescribedArgument, metavar=shown, description=description + default, **more)


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Let the shell complete file names, for an argument that is more than a file."""
    return [CompletionItem(incomplete, type="file")]


json_option = flag("--json", "Print one JSON document instead of text.")
all_option = flag("everything --all", "Show all partitions, and those left out.")


def run_command(command: click.Command, name: str, arguments: list[str]) -> int:
    """Run a command and return the exit code; an error is one sentence on stderr."""
    # Click's own main() would print errors, and exit on a closed pipe: main.run does both.
    if isinstance(command, click.Group) and not arguments:
        arguments = ["--help"]
    path, result = f"leadline {name}", None
    try:
        with command.make_context(path, [*arguments], color=False if os.environ.get("NO_COLOR") else None) as context:
            result = command.invoke(context)
    except LeadlineError as error:
        sys.stderr.write(f"{path}: {error}\n")
        return error.exit_code
    except click.ClickException as error:
        sys.stderr.write(f"{path}: {LeadlineError(describe_usage_error(error, path, arguments))}\n")
        return error.exit_code
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.Abort:
        sys.stderr.write(f"{path}: aborted\n")
        return 1
    except KeyboardInterrupt:
        result = INTERRUPTED
    if result == INTERRUPTED:
        sys.stderr.write(f"{path}: interrupted\n")
    return result if isinstance(result, int) else 0


def suggest_options(typed: str, options: Iterable[str]) -> list[str]:
    """Return the ``options`` that ``typed`` may mean, the best first: by synonym, by prefix, then by spelling."""
    long_options = [option for option in options if option.startswith("--")]
    word = typed.lstrip("-").partition("=")[0].replace("_", "-").casefold()
    if f"--{word}" in long_options:
        return [f"--{word}"]
    names = {option: (option[2:], *read_table("synonyms").get(option, ())) for option in long_options}
    synonyms = [option for option in long_options if word in names[option][1:]]
    known = names.items() if len(word) > 2 else ()
    prefixed = [option for option, words in known if any(name.startswith(word) for name in words)]
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


def _as_typed(option: str, arguments: Sequence[str]) -> str:
    """Return the option as it was typed; of ``-bs``, Click reports only ``-b``."""
    if option.startswith("--"):
        return option
    return next((word for word in arguments if word.startswith(option) and not word.startswith("--")), option)
