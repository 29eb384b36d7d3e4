"""Which option was meant: by its meaning first, as other tools call it, and by its letters only then."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

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


def meant(given: str, options: Iterable[str]) -> list[str]:
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


def unknown_option(given: str, options: Sequence[str], command: str, *, takes_command: bool) -> str:
    """Return the sentence that answers an option which ``command`` does not have.

    ``takes_command`` says that the user's own command may stand after ``--``, where its options belong.
    """
    close = meant(given, options)
    hint = f"did you mean {' or '.join(close)}?" if close else f"{command} --help lists the options"
    own = "; an option of your own command goes after --" if takes_command else ""
    return f"unknown option {given}: {hint.removesuffix('?') if own else hint}{own}"
