"""``leadline chat``: ask in your own words."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from leadline.app.composition import user_catalog
from leadline.files.atomic import write_atomically
from leadline.files.read import exists, read_input_text
from leadline.interfaces.chat.command_line import shown_command
from leadline.interfaces.chat.conversation import Conversation, Part, PartKind, without_marks
from leadline.interfaces.chat.reach import reach_model, system_message
from leadline.interfaces.chat.run_command import CommandRunner
from leadline.interfaces.cli.command import FILE, argument, command, flag, option
from leadline.interfaces.cli.output import print_note
from leadline.interfaces.tools import tools

HELP = (
    "Ask for the time, memory or cost of a workload, whether it fits, or where to run it; for systems and devices; for "
    "jobs, their logs and why they wait; for past runs, models and campaigns; or submit and cancel. Empty line: end."
)


@command("chat")
@argument("question", "QUESTION", "One question; without it, a conversation.", "none", nargs=-1)
@option("--model", "NAME", "Model of the Ollama server.", "$LEADLINE_CHAT_MODEL, else qwen3:8b")
@option("--host", "URL", "The Ollama server.", "$OLLAMA_HOST, else http://127.0.0.1:11434")
@flag("--no-model", "Use no language model: a grammar reads the question.")
@option("--save", "FILE", "Add the conversation to a Markdown file.", "none", type=FILE)
def chat(question: tuple[str, ...], *, model: str | None, host: str | None, no_model: bool, save: Path | None) -> None:
    """Answer questions in your own words: with a model on Ollama that calls the tools, or without one.

    Every number comes from a command, which is shown. Submitting and cancelling ask you first.
    """
    folder = Path.cwd()
    earlier = read_input_text(save) if save is not None and exists(save) else ""
    reached, where = (None, "--no-model") if no_model else reach_model(model, host)
    no_model_note = f"no language model: {where}; a grammar reads your questions"
    print_note(f"answers come from {where}" if reached else no_model_note)
    conversation = Conversation(
        tools(folder, scripts=True), [system.name for system in user_catalog().systems()],
        CommandRunner(folder, scripts=True), _agrees, reached, system_message() if reached else "",
    )  # fmt: skip
    for text in [" ".join(question)] if question else _questions():
        try:
            _answer(conversation, text)
        finally:
            if save is not None:
                write_atomically(save, earlier + conversation.to_markdown())


def _questions() -> Iterator[str]:
    if sys.stdin.isatty():
        print_note(HELP)
    while True:
        try:
            question = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if not question:
            if sys.stdin.isatty():
                return
            continue
        yield question


def _answer(conversation: Conversation, question: str) -> None:
    words = False
    for part in conversation.ask(question):
        if words and part.kind is not PartKind.WORDS:
            click.echo()
        words = part.kind is PartKind.WORDS
        _show(part)
    click.echo()


def _show(part: Part) -> None:
    text = without_marks(part.text)
    if part.kind is PartKind.WORDS:
        click.echo(text, nl=False)
    elif part.kind is PartKind.CALL:
        click.secho(f"$ {text}", dim=True)
    else:
        click.echo(text)


def _agrees(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Ask the user; without a terminal nobody can agree."""
    if not sys.stdin.isatty():
        return False
    print_note(shown_command(tool, arguments))
    return click.confirm("Do this?", default=False, err=True)
