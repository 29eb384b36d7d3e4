"""Read the one Python command of a simple shell script, with the variables and the folder it sets before.

Assignments, ``export``, ``cd``, line continuations, redirections and commands that only prepare are read. Anything that
decides at run time, such as ``if`` or a loop, is refused with its line.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from leadline.core.errors import Untraceable
from leadline.core.frozen import Frozen

IGNORED = (
    "set", "module", "ml", "source", ".", "echo", "printf", "mkdir", "date", "pwd", "hostname", "ulimit", "sleep",
    "nvidia-smi", "conda", "mamba", "unset", "wait", "trap", "shopt", "ls", "cat", "rm", "cp", "which", "umask", "true",
    "rocm-smi", "free", "lscpu", "env", "module-load", "nvcc", "exit", "touch", "chmod", "pip",
)  # fmt: skip
"""Commands that do not train. The environment they prepare is that of the shell that starts Leadline."""
CONTROL = (
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "function", "select",
    "{", "}", "((", "[[", "eval",
)  # fmt: skip
SEPARATORS = {";", "&&", "||", "&"}
UNREADABLE = "\0"
"""Stands for a text that only a shell can compute."""
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
VARIABLE = re.compile(r"\$(?:\{(\w+|[@*#])(?:(:?[-=])([^{}]*))?\}|(\w+|[@*#]))")
TOKEN = re.compile(r"""(?<!\S)\d+[<>]+&?|[;&|<>]+|\#.*|(?:[^\s"'`;&|<>\\#]|\\.|"(?:\\.|[^"\\])*"|'[^']*'|(?<=\S)\#)+""")
PARENTHESES = re.compile(r"""^[^"'$#]*[()]""")
COMPUTED = re.compile(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`")


class ScriptCall(Frozen):
    """The words of the Python command of a script, the variables that it sets for it, and the folder it changes to."""

    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    folder: str = ""


def read_script(text: str, name: str, arguments: Sequence[str] = ()) -> ScriptCall:
    """Return the Python command of a script. ``arguments`` are its name (``$0``) and its arguments.

    Raises:
        Untraceable: The script decides at run time what it runs, or calls Python several times or never.
    """
    values = {str(number): argument for number, argument in enumerate(arguments or [name])}
    values |= {"@": shlex.join(arguments[1:]), "*": " ".join(arguments[1:]), "#": str(max(len(arguments) - 1, 0))}
    exported: dict[str, str] = {}
    folder, calls = "", list[tuple[int, ScriptCall]]()
    for line, words in _commands(text, name):
        program = words[0]
        if program in CONTROL or program.endswith("()") or words[1:2] == ["()"]:
            raise _refusal(name, line, f"decides at run time what it runs ({program})")
        is_export = program in ("export", "declare", "readonly")
        if is_export or all(ASSIGNMENT.match(word) for word in words):
            for word in words[is_export:]:
                variable, joined, value = word.partition("=")
                if joined:
                    values[variable] = _expand(value, values)
                if is_export or variable in exported:
                    exported[variable] = values.get(variable, "")
        elif program == "cd":
            folder = str(Path(folder, _readable(_expand("".join(words[1:2]) or "~", values), name, line)).expanduser())
        elif Path(program).name not in IGNORED:
            expanded = [word for part in words for word in _expand_word(part, values)]
            command = tuple(_readable(word, name, line) for word in expanded)
            kept = tuple(
                (key, _readable(value, name, line)) for key, value in exported.items() if UNREADABLE not in value
            )
            calls.append((line, ScriptCall(command, kept, folder)))
    return _only_call(calls, name)


def _only_call(calls: list[tuple[int, ScriptCall]], name: str) -> ScriptCall:
    if not calls:
        raise Untraceable(f"{name} calls no Python: give the command that trains after --")
    if len(calls) > 1:
        lines = ", ".join(str(line) for line, _ in calls)
        raise Untraceable(
            f"{name} runs {len(calls)} commands (lines {lines}): give the one that trains after --, as in "
            f"-- {shlex.join(calls[0][1].words)[:100]}"
        )
    return calls[0][1]


def _refusal(name: str, line: int, fault: str) -> Untraceable:
    return Untraceable(
        f"line {line} of {name} {fault}: give the Python command that it runs after --, as in -- python train.py"
    )


def _readable(text: str, name: str, line: int) -> str:
    if UNREADABLE in text:
        raise _refusal(name, line, "uses a value that only a shell can compute")
    return text


def _commands(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the words of each simple command, quotes kept, without redirections and what a pipe feeds."""
    lines = re.sub(r"\\\r?\n", " \0", text).splitlines()
    number = 0
    for line in lines:
        number += 1
        start, number = number, number + line.count("\0")
        joined = COMPUTED.sub(UNREADABLE, line.replace("\0", ""))
        if "<<" in joined:
            raise _refusal(name, start, "feeds text to a command (<<)")
        tokens = TOKEN.findall(joined)
        if re.sub(r"\s", "", joined) != re.sub(r"\s", "", "".join(tokens)) or any(
            PARENTHESES.search(t) for t in tokens
        ):
            raise _refusal(name, start, "is more than a simple command")
        yield from ((start, words) for words in _split(tokens) if words)


def _split(tokens: Sequence[str]) -> Iterator[list[str]]:
    words: list[str] = []
    skipping = is_target = False
    for text in tokens:
        if text.startswith("#"):
            break
        if text in SEPARATORS:
            yield words
            words, skipping = [], False
        elif text == "|":
            skipping = True
        elif re.fullmatch(r"\d*[<>&|]+", text):
            is_target = True
        elif is_target:
            is_target = False
        elif not skipping:
            words.append(text)
    yield words


def _expand_word(word: str, values: dict[str, str]) -> list[str]:
    """Return the words that a shell makes of one: variables outside quotes are split at spaces."""
    if word in ('"$@"', "$@", '"${@}"'):
        return shlex.split(values["@"])
    expanded = _expand(word, values)
    is_quoted = word[:1] in "\"'" or '"$' in word
    return [expanded] if is_quoted or "$" not in word else expanded.split()


def _expand(word: str, values: dict[str, str]) -> str:
    """Replace variables, outside single quotes, and remove the quotes."""
    if word.startswith("'"):
        return word.strip("'")

    def value(match: re.Match[str]) -> str:
        name, _, default, plain = match.groups()
        value_set = values.get(name or plain) or os.environ.get(name or plain, "")
        return value_set or (_expand(default, values) if default else "")

    text = VARIABLE.sub(value, word)
    if "$((" in word or "$" in text.replace("\\$", ""):
        return UNREADABLE
    unquoted = re.sub(r"""(?<!\\)["']""", "", text)
    return str(Path(unquoted).expanduser()) if word.startswith("~") else unquoted
