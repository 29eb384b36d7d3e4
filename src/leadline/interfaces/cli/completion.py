"""Shell completion by Click: of commands, subcommands, options, choices and file names."""

import os
import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.interfaces.cli.commands import COMMANDS, COMPLETE, load_command

SCRIPTS = {
    "bash": (".local/share/leadline/completion.bash", ".bashrc", ""),
    "zsh": (".local/share/leadline/completion.zsh", ".zshrc", "autoload -Uz compinit && compinit\n"),
    "fish": (".config/fish/completions/leadline.fish", "", ""),
}
"""Shell → its script, the start-up file that reads it, and what must come first there; fish finds its script itself."""


class LazyGroup(click.Group):
    """All commands; each is imported only when its own words are completed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so; Click's own would import each of them for its help."""
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return names or super().shell_complete(ctx, incomplete)


def complete() -> int:
    """Answer a shell that asks for completions."""
    return shell_complete(LazyGroup("leadline"), {}, "leadline", COMPLETE, os.environ[COMPLETE])


def completion_option(option: str, shell: str = "") -> int:
    """Print the completion script of a shell, or install it; by default of the user's shell."""
    try:
        shell = shell or Path(os.environ.get("SHELL", "")).name
        if shell not in SCRIPTS:
            raise UnknownName("shell", shell, SCRIPTS) if shell else InvalidInput(f"name the shell: {option} bash")
        script = completion_script(shell)
        if option == "--show-completion":
            click.echo(script)
        else:
            _install(shell, script)
    except LeadlineError as error:
        sys.stderr.write(f"leadline: {error}\n")
        return error.exit_code
    return 0


def completion_script(shell: str) -> str:
    """Return the script that makes a shell ask Leadline."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None  # noqa: S101 - Click has all shells of SCRIPTS
    return completion_class(LazyGroup("leadline"), {}, "leadline", COMPLETE).source()


def _install(shell: str, script: str) -> None:
    """Write the script, and a line that reads it to the shell's start-up file."""
    file, startup, first = SCRIPTS[shell]
    path = Path.home() / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    if startup:
        startup_path = Path.home() / startup
        existing = startup_path.read_text(encoding="utf-8") if startup_path.exists() else ""
        if str(path) not in existing:
            with startup_path.open("a", encoding="utf-8") as stream:
                stream.write(f"\n{first}source '{path}'  # completion of leadline\n")
    click.echo(f"completion installed in ~/{file}; open a new {shell} to use it")
