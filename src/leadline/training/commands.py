"""Find the command of an application with its ``{parameters}``, from the commands of its runs."""

from collections.abc import Mapping, Sequence

from leadline.core.runs import Run
from leadline.core.samples import Value


def command_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the words with ``{name}`` where a parameter's value, or the cores or GPUs, stood in every run.

    Nothing where the runs' commands differ in more than that, or a parameter stands in no word.
    """
    if not runs or len({len(run.job.command) for run in runs}) != 1:
        return ()
    values = [_values(run) for run in runs]
    words = []
    for place in range(len(runs[0].job.command)):
        said = [run.job.command[place] for run in runs]
        word = said[0] if len(set(said)) == 1 and not _stands(said[0], values) else _template(said, values)
        if word is None:
            return ()
        words.append(word)
    missing = [name for name in runs[0].parameters if not any(f"{{{name}}}" in word for word in words)]
    return () if missing else tuple(words)


def _values(run: Run) -> Mapping[str, Value]:
    asked = run.job.resources
    resources: dict[str, Value] = {"gpus": asked.gpus_per_node}
    if asked.cores_per_task is not None:
        resources["cores"] = asked.cores_per_task
    return {**run.parameters, **resources}


def _stands(word: str, values: Sequence[Mapping[str, Value]]) -> bool:
    """Whether a word that is the same in all runs is the value of a parameter that never varied."""
    constant = [name for name, value in values[0].items() if all(each.get(name) == value for each in values)]
    return any(word == str(values[0][name]) for name in constant if name not in ("gpus", "cores"))


def _template(said: Sequence[str], values: Sequence[Mapping[str, Value]]) -> str | None:
    """Return a word with one parameter in it, such as ``--epochs={epochs}``; ``None`` where none explains it."""
    for name in values[0]:
        if not all(name in each for each in values):
            continue
        for head, tail in _around(said[0], str(values[0][name])):
            if all(word == f"{head}{each[name]}{tail}" for word, each in zip(said, values, strict=True)):
                return f"{head}{{{name}}}{tail}"
    return None


def _around(word: str, value: str) -> list[tuple[str, str]]:
    """Return what stands before and after each place of ``value`` in ``word``."""
    places = [at for at in range(len(word)) if word.startswith(value, at)]
    return [(word[:at], word[at + len(value) :]) for at in places]
