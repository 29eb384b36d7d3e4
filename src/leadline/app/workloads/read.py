"""Read a workload: from a TOML file, from what the command line names, or both (the command line wins)."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from leadline.app.workloads.model_function import find_framework
from leadline.app.workloads.options import WorkloadOptions, build_adapters, build_quantization, check_optimizer
from leadline.app.workloads.sequence_lengths import read_batch_lengths
from leadline.core.documents import explain_read_error, from_toml
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.graph import BYTES_PER_ELEMENT
from leadline.core.units import parse_bytes
from leadline.core.workload import (
    Dataset,
    InputShape,
    ModelKind,
    ModelSource,
    Optimizer,
    Parallelism,
    Phase,
    Precision,
    Sharding,
    Workload,
)
from leadline.graphs.torch.command import parse_command

T = TypeVar("T", bound=StrEnum)

PRECISION_ALIASES = {
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "amp": "amp-fp16",
    "mixed": "amp-bf16",
}
"""Other words people use for a precision."""

_HLO_FILES = (".mlir", ".stablehlo", ".hlo")
"""Endings of files that hold StableHLO or HLO text; a dump of XLA ends in ``.txt``."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_INPUT = re.compile(r"(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")


class _WorkloadFile(WorkloadOptions, frozen=True, forbid_unknown_fields=True):
    """A workload file: the options, the model, and values for the command's ``{parameters}``."""

    model: str | None = None
    command: str | list[str] | None = None
    parameters: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)


def read_workload(subject: Sequence[str], options: WorkloadOptions | None = None) -> Workload:
    """Return the workload that ``subject`` names, changed by ``options``.

    ``subject`` is one word (``config.json``, ``model.onnx``, ``step.mlir``, ``train.py:build``, ``job.toml``) or a
    whole command (``python train.py --epochs 3``).

    Raises:
        InvalidInput: nothing of that name, a broken file (with its line), or a value out of range.
    """
    given = options or WorkloadOptions()
    if not "".join(subject).strip():
        raise InvalidInput(
            "no workload is named: give a config.json, a model.onnx, a step.mlir, a file.py:function, a job.toml, "
            "or your command after --, as in: leadline estimate -- python train.py"
        )
    if len(subject) == 1 and subject[0].endswith(".toml"):
        return _from_file(Path(subject[0]), given)
    return _build(_source(subject), given)


def _from_file(path: Path, given: WorkloadOptions) -> Workload:
    """Read a TOML workload file; options given on the command line win over its own."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} does not exist: check the path of the workload file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {explain_read_error(error)}") from error
    content = from_toml(text, _WorkloadFile, label=str(path))
    if content.lengths is not None:
        content = msgspec.structs.replace(content, lengths=str(path.parent / content.lengths))
    merged = msgspec.structs.replace(content, **_given(given))
    if merged.name is None:
        merged = msgspec.structs.replace(merged, name=path.stem)
    return _build(_source(_words_of(content, path), base=path.parent), merged)


def _words_of(content: _WorkloadFile, path: Path) -> list[str]:
    """Return the model as one word, or the command with its ``{parameters}`` filled in."""
    if (content.model is None) == (content.command is None):
        raise InvalidInput(f'{path} must name either model = "…" or command = "…", and only one of them')
    if content.model is not None:
        return [content.model]
    command = content.command or ""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if not words:
        raise InvalidInput(f"{path}: the command is empty: write what you would type, as in python train.py")
    return [_fill(word, content.parameters, path) for word in words]


def _fill(word: str, parameters: dict[str, str | int | float | bool], path: Path) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in parameters:
            raise InvalidInput(f"{path}: the command has {{{match[1]}}} but [parameters] has no {match[1]}: add it")
        return str(parameters[match[1]])

    return _PLACEHOLDER.sub(value, word)


def _source(subject: Sequence[str], base: Path | None = None) -> ModelSource:
    """Tell by its form how the model is named; a relative path counts from ``base``."""
    word = subject[0]
    if len(subject) == 1:
        return _model(word, base)
    if Path(word).suffix in (".json", ".onnx", ".toml", *_HLO_FILES) or ".py:" in word:
        raise InvalidInput(
            f"{' '.join(subject[1:])!r} stands after {word}, which is a whole workload: put a name that holds spaces "
            "in quotes, as in --on 'A100 SXM4 80GB', and your own command after --"
        )
    return ModelSource(ModelKind.COMMAND, shlex.join(subject), tuple(subject))


def _model(word: str, base: Path | None) -> ModelSource:
    """Return the model that one word names."""
    file, colon, function = word.rpartition(":")
    path = Path(file if colon else word)
    if base is not None and not path.is_absolute():
        path = base / path
    if colon and path.suffix == ".py":
        _require_file(path)
        if not function.isidentifier():
            raise InvalidInput(f"{function!r} is not a function name: write {path}:function")
        framework = find_framework(path, function)
        kind = ModelKind.JAX_FUNCTION if framework == "jax" else ModelKind.FUNCTION
        return ModelSource(kind, f"{path}:{function}")
    if path.suffix == ".json":
        _require_file(path)
        return ModelSource(ModelKind.HF_CONFIG, str(path))
    if path.suffix == ".onnx":
        _require_file(path)
        return ModelSource(ModelKind.ONNX, str(path))
    if path.suffix in _HLO_FILES or (path.suffix == ".txt" and _is_hlo(path)):
        _require_file(path)
        return ModelSource(ModelKind.HLO, str(path))
    if path.suffix == ".py":
        raise InvalidInput(
            f"{word} is a script without its interpreter: write -- python {word} to trace it as it is, "
            f"or {word}:function to name a function that returns the model"
        )
    if path.is_dir() and (path / "config.json").is_file():
        return ModelSource(ModelKind.HF_CONFIG, str(path / "config.json"))
    if path.is_dir():
        raise InvalidInput(f"{word} is a folder without a config.json: name the file that describes the model")
    raise InvalidInput(
        f"{word!r} is no workload: give a config.json, a model.onnx, a step.mlir, a file.py:function, a job.toml, "
        "or your command after --, as in: -- python train.py"
    )


def _is_hlo(path: Path) -> bool:
    """Whether a text file is one that XLA dumped."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4096).lstrip().startswith(b"HloModule")


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder: name a file in it")
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist: check the path")


def _build(source: ModelSource, given: WorkloadOptions) -> Workload:
    """Check every option's range and build the workload; fields left out are listed in ``defaulted``.

    ``--batch`` is the leading dimension of every input; without it the first input's own is the batch.
    """
    _check_ranges(given)
    _refuse_idle(source.kind, given)
    if given.epochs is not None and given.steps is not None:
        raise InvalidInput("--epochs and --steps are both given: say how long the job is by one of them")
    inputs = tuple(parse_input(text) for text in _as_list(given.input))
    batch = given.batch or (inputs[0].shape[0] if inputs else None)
    phase = _choice(Phase, given.phase, "phase") or Phase.TRAINING
    if phase is Phase.INFERENCE and given.sharding is not None:
        raise InvalidInput("--sharding shares out what only training holds: leave it out of inference")
    if phase is Phase.TRAINING and given.generate is not None:
        raise InvalidInput(f"--generate is {given.generate}, but training generates nothing: add --phase inference")
    if given.paged and given.generate is None:
        raise InvalidInput("--paged keeps the cache of tokens that are generated: say how many by --generate")
    gpus = given.gpus or count_launched_processes(source.argv)[0]
    parallelism = _parallelism(given)
    parallelism.copies(gpus)
    precision = _choice(Precision, PRECISION_ALIASES.get(given.precision or "", given.precision), "precision")
    optimizer = _choice(Optimizer, given.optimizer, "optimizer")
    check_optimizer(optimizer, source.kind)
    padding = read_batch_lengths(given, source.kind)
    return Workload(
        model=source,
        phase=phase,
        batch=batch,
        inputs=tuple(replace(one, shape=(batch or one.shape[0], *one.shape[1:])) for one in inputs),
        sequence=padding.sequence,
        longest=padding.longest,
        lengths=padding.lengths,
        precision=precision,
        optimizer=optimizer,
        accumulation=given.accumulate or 1,
        checkpointing=bool(given.checkpointing),
        dataset=Dataset(
            samples=given.samples,
            bytes_per_sample=_size(given.bytes_per_sample),
            workers=given.workers or 0,
            held_in_memory=bool(given.held_in_memory),
        ),
        epochs=given.epochs,
        steps=given.steps,
        gpus=gpus,
        parallelism=parallelism,
        adapters=build_adapters(given, source.kind, phase, parallelism),
        quantization=build_quantization(given, precision),
        generated=given.generate,
        paged=bool(given.paged),
        name=given.name or _name_of(source),
        compiled=bool(given.compile),
        defaulted=tuple(name for name in _REPORTED if getattr(given, name) is None),
    )


def _check_ranges(given: WorkloadOptions) -> None:
    """Refuse a number that is too small to mean anything, or too large to be meant."""
    for name, least in _LEAST.items():
        value = getattr(given, name)
        if value is not None and value < least:
            raise InvalidInput(f"--{name.replace('_', '-')} is {value}, but it must be at least {least}")
    if given.epochs is not None and not given.epochs > 0:
        raise InvalidInput(f"--epochs is {given.epochs:g}, but it must be more than 0: give the passes over the data")
    for name, most in _MOST.items():
        value = getattr(given, name)
        if value is not None and value > most:
            raise InvalidInput(
                f"--{name.replace('_', '-')} is {value:g}, but it can be at most {most:,}: check its digits"
            )


def _parallelism(given: WorkloadOptions) -> Parallelism:
    return Parallelism(
        tensor=given.tensor_parallel or 1,
        pipeline=given.pipeline_parallel or 1,
        sharding=_choice(Sharding, given.sharding, "sharding") or Sharding.NONE,
    )


def count_launched_processes(command: Sequence[str]) -> tuple[int, int]:
    """Return how many processes a command's launcher starts, and on how many nodes; one each where there is none."""
    try:
        parsed = parse_command(tuple(command))
    except LeadlineError:  # no Python, or a script that is not here: it may well run elsewhere, and says nothing here
        return 1, 1
    return parsed.local_processes * parsed.nodes, parsed.nodes


def _refuse_idle(kind: ModelKind, given: WorkloadOptions) -> None:
    """Refuse an option that changes nothing for a model that is named in this way, rather than overlook it."""
    names, instead = _IDLE[kind]
    for name in names:
        if getattr(given, name) is not None:
            raise InvalidInput(f"--{name.replace('_', '-')} changes nothing here: {instead}")
    if given.generate is not None and kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"--generate is {given.generate}, but only the config.json of a language model can generate: name one"
        )
    if given.compile and kind is not ModelKind.JAX_FUNCTION:
        raise InvalidInput("--compile is given, but only a JAX function can be compiled: name one, as in step.py:build")


_IDLE: dict[ModelKind, tuple[tuple[str, ...], str]] = {
    ModelKind.COMMAND: (
        ("input", "seq", "precision", "optimizer", "checkpointing", "tensor_parallel", "pipeline_parallel", "sharding"),
        "a script is read as it stands, so give its own option after its name, as in -- python train.py --amp",
    ),
    ModelKind.HF_CONFIG: (("input",), "a config.json is fed by --batch and --seq"),
    ModelKind.FUNCTION: (("seq",), "the inputs of a function are given whole, as in --input 8x512:int64"),
    ModelKind.ONNX: (
        ("optimizer", "accumulate", "checkpointing", "sharding"),
        "an ONNX file has no backward, and cannot be trained",
    ),
    ModelKind.HLO: (
        ("input", "batch", "seq", "precision", "optimizer", "accumulate", "checkpointing"),
        "a lowered module has its sizes written in it, so lower the function again with others",
    ),
    ModelKind.JAX_FUNCTION: (
        ("seq", "precision", "accumulate", "checkpointing"),
        "a JAX function says it itself, so change it there",
    ),
}
"""How a model is named → the options that change nothing then, and what to do instead."""
_LEAST = {
    "batch": 1, "seq": 1, "seq_max": 1, "generate": 1, "accumulate": 1, "lora": 1, "steps": 1, "samples": 1,
    "workers": 0, "gpus": 1, "tensor_parallel": 1, "pipeline_parallel": 1,
}  # fmt: skip
_MOST = {
    "batch": 10**9, "seq": 10**9, "seq_max": 10**9, "generate": 10**9, "accumulate": 10**6, "lora": 10**5,
    "epochs": 10**9, "steps": 10**12, "samples": 10**15, "workers": 10**6, "gpus": 10**6, "tensor_parallel": 10**4,
    "pipeline_parallel": 10**4,
}  # fmt: skip
"""Beyond these a value is a slip of the keyboard: no job comes near them."""
_REPORTED = ("phase", "batch", "seq", "precision", "optimizer", "accumulate", "checkpointing", "workers", "gpus")


def parse_input(text: str) -> InputShape:
    """Read one input shape: ``64x3x224x224`` or ``8x512:int64``; float32 when no dtype is given.

    Raises:
        InvalidInput: the text is no shape, a dimension is 0, or the dtype is unknown.
    """
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"--input {text!r} is not a shape: write for example 64x3x224x224 or 8x512:int64")
    shape = tuple(int(size) for size in match["shape"].split("x"))
    if max(shape) > _MOST["samples"]:
        raise InvalidInput(
            f"--input {text!r} has a dimension of {max(shape):g}: no tensor is that large; check its digits"
        )
    if 0 in shape:
        raise InvalidInput(f"--input {text!r} has a dimension of 0: every dimension must be at least 1")
    dtype = match["dtype"] or "float32"
    if dtype not in BYTES_PER_ELEMENT:
        raise UnknownName("dtype", dtype, BYTES_PER_ELEMENT)
    return InputShape(shape, dtype)


def _choice(kind: type[T], text: str | None, what: str) -> T | None:
    if text is None:
        return None
    try:
        return kind(text.lower())
    except ValueError as error:
        names = [member.value for member in kind]
        raise UnknownName(what, text, names, fix=f"--{what} takes {', '.join(names)}") from error


def _size(value: int | str | None) -> int | None:
    if value is None:
        return None
    size_bytes = value if isinstance(value, int) else parse_bytes(value)
    if size_bytes > _MOST["samples"]:
        raise InvalidInput(f"--bytes-per-sample is {value}, but a sample can hold at most 1 PB: check its digits")
    if size_bytes < 0:
        raise InvalidInput(f"--bytes-per-sample is {value}, but a size is never negative")
    return size_bytes


def _name_of(source: ModelSource) -> str:
    if source.kind is ModelKind.COMMAND:
        script = next((word for word in source.argv if word.endswith(".py")), source.argv[0])
        return Path(script).stem
    path = Path(source.reference.rpartition(":")[0] or source.reference)
    return path.parent.name if path.name == "config.json" and path.parent.name else path.stem


def _as_list(value: list[str] | str | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _given(options: WorkloadOptions) -> dict[str, object]:
    """Return the options that were given."""
    return {name: value for name, value in msgspec.structs.asdict(options).items() if value is not None}
