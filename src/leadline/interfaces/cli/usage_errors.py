"""Errors of a wrong command line: Click's own message, with better suggestions for an unknown option."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import click

COMMAND_PLACEHOLDER = "COMMAND"
"""Part of the metavar of an argument that may be the user's own command."""

SYNONYMS: dict[str, tuple[str, ...]] = {
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
    "--load-s": ("load-time", "loading-time", "data-time", "load"),
    "--held-in-memory": ("in-memory", "cache", "preload"),
    "--all": ("a", "full", "verbose", "v", "everything"),
    "--json": ("format", "output", "o", "machine-readable"),
    "--quick": ("fast", "short", "small"),
    "--data": ("dataset", "folder", "dir", "input"),
    "--limit": ("n", "last", "head", "max", "count", "number"),
    "--format": ("csv", "json", "type", "output"),
}  # fmt: skip
"""Option → names of other tools for it: options of schedulers and of training scripts."""

SIMILARITY = 0.7
"""Minimum similarity of spelling (0 to 1) between an unknown option and a suggestion."""


def suggest_options(typed: str, options: Iterable[str]) -> list[str]:
    """Return the ``options`` that ``typed`` may mean, the best first: by synonym, by prefix, then by spelling."""
    long_options = [option for option in options if option.startswith("--")]
    word = typed.lstrip("-").partition("=")[0].replace("_", "-").casefold()
    if f"--{word}" in long_options:
        return [f"--{word}"]
    synonyms = [option for option in long_options if word in SYNONYMS.get(option, ())]
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
    return any(name.startswith(word) for name in (option[2:], *SYNONYMS.get(option, ())))


def _as_typed(option: str, arguments: Sequence[str]) -> str:
    """Return the option as it was typed; of ``-bs``, Click reports only ``-b``."""
    if option.startswith("--"):
        return option
    return next((word for word in arguments if word.startswith(option) and not word.startswith("--")), option)
