"""Which option was meant: by its meaning first, as other tools call it, and by its letters only then."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

MEANINGS: dict[str, tuple[str, ...]] = {
    "--on": ("system", "device", "target", "gpu", "gpu-type", "machine", "cluster", "site", "host", "where",
             "partition", "queue", "p", "accelerator"),
    "--device": ("gpu", "cuda", "cpu", "target", "on"),
    "--gpus": ("gpu", "num-gpus", "ngpus", "gpu-count", "gpus-per-node", "gres", "world-size", "nproc-per-node", "g"),
    "--nodes": ("num-nodes", "nnodes", "n"),
    "--cores": ("cpus", "cpu", "ncpus", "num-cpus", "cpus-per-task", "threads", "c"),
    "--memory": ("mem", "ram", "memory-per-node", "mem-per-cpu"),
    "--time": ("time-limit", "walltime", "duration", "timeout", "limit", "max-time", "t"),
    "--deadline": ("time", "time-limit", "walltime", "due", "until", "by", "max-time", "t"),
    "--budget": ("cost", "max-cost", "price", "money", "time", "seconds", "duration"),
    "--currency": ("unit", "units"),
    "--risk": ("confidence", "level", "quantile", "probability"),
    "--account": ("project", "allocation", "charge", "a"),
    "--name": ("job-name", "j"),
    "--workdir": ("chdir", "cwd", "dir", "directory", "folder", "d"),
    "--setup": ("module", "modules", "load", "prologue", "env", "conda"),
    "--array": ("job-array", "indices", "a"),
    "--after": ("dependency", "depends-on", "afterok", "wait-for"),
    "--after-any": ("afterany",),
    "--attempts": ("retries", "retry", "max-retries", "requeue", "tries"),
    "--most-cost": ("budget", "cost", "max-cost", "price", "money"),
    "--most-node-hours": ("node-hours", "max-node-hours"),
    "--resumes": ("resume", "restartable", "requeueable", "checkpointable"),
    "--checkpoint-signal": ("signal",),
    "--detach": ("background", "bg", "no-wait", "detached"),
    "--no-resize": ("no-change", "fixed", "keep-request"),
    "--until-idle": ("until-done", "exit-when-done"),
    "--each": ("unfold", "expand", "elements", "r"),
    "--dry-run": ("print", "script", "test-only", "show", "n", "no-run", "preview"),
    "--yes": ("force", "no-confirm", "assume-yes", "non-interactive"),
    "--batch": ("batch-size", "bs", "b", "train-batch-size", "per-device-train-batch-size", "micro-batch"),
    "--seq": ("seq-len", "sequence", "sequence-length", "max-length", "max-seq-length", "context", "tokens", "s"),
    "--input": ("shape", "input-shape", "input-size", "i"),
    "--precision": ("dtype", "amp", "fp16", "bf16", "half", "mixed-precision", "fp32", "tf32", "type"),
    "--optimizer": ("optim", "opt"),
    "--lora": ("lora-r", "lora-rank", "peft", "adapter", "adapters", "rank", "use-lora", "qlora"),
    "--lora-embeddings": ("modules-to-save",),
    "--quantize": ("load-in-4bit", "load-in-8bit", "bits", "quantization", "qlora", "nf4", "int8", "quant"),
    "--epochs": ("num-epochs", "num-train-epochs", "epoch", "passes", "e"),
    "--steps": ("max-steps", "num-steps", "iterations", "iters", "updates"),
    "--samples": ("num-samples", "dataset-size", "dataset", "examples", "images", "rows"),
    "--bytes-per-sample": ("sample-size", "sample-bytes", "file-size"),
    "--workers": ("num-workers", "loader-workers", "dataloader-workers", "j"),
    "--phase": ("mode", "train", "training", "inference", "infer"),
    "--accumulate": ("accumulation", "gradient-accumulation", "gradient-accumulation-steps", "grad-accum"),
    "--checkpointing": ("gradient-checkpointing", "activation-checkpointing", "recompute", "remat"),
    "--held-in-memory": ("in-memory", "cache", "preload"),
    "--all": ("a", "full", "verbose", "v", "everything"),
    "--json": ("format", "output", "o", "machine-readable"),
    "--quick": ("fast", "short", "small"),
    "--data": ("dataset", "folder", "dir", "input"),
    "--limit": ("n", "last", "head", "max", "count", "number"),
    "--format": ("csv", "json", "type", "output"),
}  # fmt: skip
"""Option → the names that other tools give to what it means: schedulers' and training scripts' options among them."""

LIKENESS = 0.7
"""Share of its letters that a name must have in common with an option to be taken for a misspelling of it."""


def suggest_options(given: str, options: Iterable[str]) -> list[str]:
    """Return those of a command's ``options`` that ``given`` may mean, the likeliest first; none if it is far off.

    Args:
        given: the option as typed, such as ``--time-limit`` or ``-t``.
        options: the command's own, such as ``--time``; ``--help`` among them does no harm.
    """
    known = [option for option in options if option.startswith("--")]
    word = given.lstrip("-").partition("=")[0].replace("_", "-")
    folded = word.casefold()
    if f"--{folded}" in known:
        return [f"--{folded}"]
    by_meaning = [option for option in known if folded in MEANINGS.get(option, ())]
    begun = [option for option in known if len(folded) > 2 and _begins(folded, option)]
    letters = get_close_matches(folded, [option[2:] for option in known], n=1, cutoff=LIKENESS)
    return by_meaning or begun or [f"--{name}" for name in letters]


def _begins(word: str, option: str) -> bool:
    return any(name.startswith(word) for name in (option[2:], *MEANINGS.get(option, ())))


def describe_unknown_option(given: str, options: Sequence[str], command: str, *, takes_command: bool) -> str:
    """Return the sentence that answers an option which ``command`` does not have.

    ``takes_command`` says that the user's own command may stand after ``--``, where its options belong.
    """
    close = suggest_options(given, options)
    hint = f"did you mean {' or '.join(close)}?" if close else f"{command} --help lists the options"
    own = "; an option of your own command goes after --" if takes_command else ""
    return f"unknown option {given}: {hint.removesuffix('?') if own else hint}{own}"


COMMAND_PLACEHOLDER = "COMMAND"
"""Stands in the metavar of an argument after which the user's own command may stand."""

_EXPECTED = {
    "integer": "a whole number, such as 8",
    "int": "a whole number, such as 8",
    "number": "a number, such as 2.5",
    "float": "a number, such as 2.5",
}
"""A word of Typer's reason → what it asks for."""


def describe_usage_error(error: Any, command: str, arguments: Sequence[str]) -> str:  # noqa: ANN401 - Typer's own are private
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
    return describe_unknown_option(typed, options, path, takes_command=any(map(_takes_command, parameters)))


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
    return COMMAND_PLACEHOLDER in (getattr(parameter, "metavar", None) or "")


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
