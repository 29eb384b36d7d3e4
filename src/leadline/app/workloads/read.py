"""Read a workload: from a TOML file, from the command line, or both (the command line wins)."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from leadline.app.workloads.adapters import build_adapters
from leadline.app.workloads.layout_options import check_layout, check_narrow_products, read_parallelism, read_recompute
from leadline.app.workloads.model_function import find_framework
from leadline.app.workloads.names import HUB, hub_config, is_library_model
from leadline.app.workloads.options import (
    OPTION_TABLES,
    WorkloadOptions,
    build_quantization,
    check_optimizer,
    parse_choice,
    parse_launch,
    parse_network_rate,
    parse_power_limit,
    read_batch_lengths,
    read_cache_dtype,
)
from leadline.core.documents import MOST_TOML_BYTES, explain_read_error, from_toml, split_command
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName, excerpt
from leadline.core.graph import BYTES_PER_ELEMENT
from leadline.core.units import parse_bytes
from leadline.core.workload import (
    TRACE_LIMIT_S,
    AttentionImplementation,
    Dataset,
    Fusion,
    InputShape,
    LossKernel,
    ModelKind,
    ModelSource,
    Optimizer,
    Phase,
    Precision,
    Workload,
)
from leadline.files.read import read_input_text
from leadline.graphs.torch.command import read_command

PRECISION_ALIASES = {
    "float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "amp": "amp-fp16", "mixed": "amp-bf16",
}  # fmt: skip
"""Synonyms of the precisions."""

_KINDS = {
    ".json": ModelKind.HF_CONFIG, ".onnx": ModelKind.ONNX, ".mlir": ModelKind.HLO, ".stablehlo": ModelKind.HLO,
    ".hlo": ModelKind.HLO,
}  # fmt: skip
"""Suffix → kind of the model in the file. A dump of XLA ends in ``.txt``."""

MODEL_SUFFIXES = (".toml", *_KINDS)
"""Suffixes of files that describe a workload and cannot be run."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_INPUT = re.compile(r"(?P<shape>\d{1,300}(?:x\d{1,300}){0,15})(?::(?P<dtype>\w+))?")


class _WorkloadFile(WorkloadOptions, frozen=True, forbid_unknown_fields=True):
    """A workload file: the options, the model, and values for the command's ``{parameters}``."""

    model: str | None = None
    command: str | list[str] | None = None
    parameters: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)


def read_workload(subject: Sequence[str], options: WorkloadOptions | None = None) -> Workload:
    """Return the workload that ``subject`` names, changed by ``options``.

    ``subject`` is one word (``config.json``, ``model.onnx``, ``step.mlir``, ``train.py:build``, ``timm:resnet50``,
    ``torchvision:resnet50``, ``hf:OWNER/MODEL``, ``job.toml``) or a whole command (``python train.py --epochs 3``).

    Raises:
        InvalidInput: unknown subject, broken file (with its line), or a value out of range.
    """
    options = options or WorkloadOptions()
    if not "".join(subject).strip():
        raise InvalidInput(
            "no workload given: name a config.json, model.onnx, step.mlir, file.py:function, timm:NAME, "
            "torchvision:NAME, hf:OWNER/MODEL or job.toml, or put your command after --, as in: leadline estimate -- "
            "python train.py"
        )
    if len(subject) == 1 and subject[0].endswith(".toml"):
        return _from_file(Path(subject[0]), options)
    return _build(_source(subject), options)


def _from_file(path: Path, options: WorkloadOptions) -> Workload:
    """Read a TOML workload file; options of the command line override its own."""
    content = _read_content(path)
    if content.lengths is not None:
        # A path in a workload file counts from the folder of that file.
        content = msgspec.structs.replace(content, lengths=str(path.parent / content.lengths))
    given = {name: value for name, value in msgspec.structs.asdict(options).items() if value is not None}
    merged = msgspec.structs.replace(content, **{"name": content.name or path.stem, **given})
    return _build(_source(_words_of(content, path), base=path.parent), merged)


def read_references(path: Path) -> tuple[list[str], str | None]:
    """Return the words of the model or the command in a TOML workload file, and the file of its lengths.

    Raises:
        InvalidInput: broken file (with its line), or without a model and a command.
    """
    content = _read_content(path)
    return _words_of(content, path), content.lengths


def _read_content(path: Path) -> _WorkloadFile:
    return from_toml(read_input_text(path, most=MOST_TOML_BYTES), _WorkloadFile, label=str(path))


def _words_of(content: _WorkloadFile, path: Path) -> list[str]:
    """Return the model as one word, or the command with its ``{parameters}`` filled in."""
    if (content.model is None) == (content.command is None):
        raise InvalidInput(f'{path} must have either model = "…" or command = "…", and not both')
    if content.model is not None:
        return [content.model]
    command = content.command or ""
    words = split_command(command, label=str(path))
    return [_fill(word, content.parameters, path) for word in words]


def _fill(word: str, parameters: dict[str, str | int | float | bool], path: Path) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in parameters:
            raise InvalidInput(f"{path}: the command has {{{match[1]}}}, but [parameters] has no {match[1]}: add it")
        return str(parameters[match[1]])

    return _PLACEHOLDER.sub(value, word)


def _source(subject: Sequence[str], base: Path | None = None) -> ModelSource:
    """Return the model source that the form of the subject implies; a relative path counts from ``base``."""
    word = subject[0]
    if len(subject) == 1:
        try:
            return _model(word, base)
        except (OSError, ValueError) as error:  # no name, or in a folder that may not be entered
            raise InvalidInput(f"{excerpt(word)!r} cannot be read: {explain_read_error(error)}") from error
    if Path(word).suffix in MODEL_SUFFIXES or ".py:" in word:
        raise InvalidInput(
            f"unexpected {' '.join(subject[1:])!r} after {word}: quote names with spaces, as in --on "
            "'A100 SXM4 80GB', and put your own command after --"
        )
    return ModelSource(ModelKind.COMMAND, shlex.join(subject), tuple(subject))


def _model(word: str, base: Path | None) -> ModelSource:
    """Return the model that one word names."""
    if is_library_model(word):
        return ModelSource(ModelKind.FUNCTION, word)
    if word.startswith(HUB):
        return ModelSource(ModelKind.HF_CONFIG, str(hub_config(word.removeprefix(HUB), base)))
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
    if path.suffix in _KINDS or (path.suffix == ".txt" and _is_hlo(path)):
        _require_file(path)
        return ModelSource(_KINDS.get(path.suffix, ModelKind.HLO), str(path))
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
        f"{word!r} is not a workload: name a config.json, model.onnx, step.mlir, file.py:function, "
        "timm:NAME, torchvision:NAME, hf:OWNER/MODEL or job.toml, or put your command after --, as in: -- python "
        "train.py"
    )


def _is_hlo(path: Path) -> bool:
    """Return whether a text file is a dump of XLA."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4096).lstrip().startswith(b"HloModule")


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder: name a file in it")
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist: check the path")


def _build(source: ModelSource, options: WorkloadOptions) -> Workload:
    """Check every option and build the workload; options without a value are listed in ``defaulted``.

    ``--batch`` replaces the leading dimension of every input; without it, that of the first input is the batch.
    """
    _check_ranges(options)
    _refuse_without_effect(source.kind, options)
    options = _fused(source.kind, options)
    if options.epochs is not None and options.steps is not None:
        raise InvalidInput("--epochs and --steps both give the length of the job: leave one out")
    shapes = [options.input] if isinstance(options.input, str) else options.input or ()
    inputs = tuple(parse_input(text) for text in shapes)
    # The shape of a library's model is known without --input.
    batch = options.batch or (inputs[0].shape[0] if inputs else 1 if source.library else None)
    phase = parse_choice(Phase, options.phase, "phase") or Phase.TRAINING
    if phase is Phase.TRAINING and options.generate is not None:
        raise InvalidInput("--generate is for inference: add --phase inference")
    if options.paged and options.generate is None:
        raise InvalidInput("--paged needs generated tokens: add --generate N")
    launched, _, launched_on_gpus = count_launched_processes(source.argv)
    gpus = options.gpus or launched
    parallelism = read_parallelism(options)
    check_layout(options, source.kind, phase)
    parallelism.copies(gpus)
    precision = parse_choice(Precision, PRECISION_ALIASES.get(options.precision or "", options.precision), "precision")
    check_narrow_products(precision, source.kind, options)
    optimizer = parse_choice(Optimizer, options.optimizer, "optimizer")
    check_optimizer(optimizer, source.kind)
    padding = read_batch_lengths(options, source.kind)
    launch, launch_s = parse_launch(options.launch)
    return Workload(
        model=source,
        phase=phase,
        batch=batch,
        inputs=tuple(replace(shape, shape=(batch or shape.shape[0], *shape.shape[1:])) for shape in inputs),
        sequence=padding.sequence,
        longest=padding.longest,
        lengths=padding.lengths,
        precision=precision,
        attention=_attention(options, source.kind),
        loss=_loss(options, source.kind, phase),
        launch=launch,
        launch_s=launch_s,
        optimizer=optimizer,
        accumulation=options.accumulate or 1,
        recompute=read_recompute(options),
        automatic_layout=options.layout == "auto",
        global_batch=options.global_batch,
        dataset=Dataset(
            samples=options.samples,
            bytes_per_sample=_size(options.bytes_per_sample),
            workers=options.workers or 0,
            load_s=options.load_s,
            held_in_memory=bool(options.held_in_memory),
        ),
        epochs=options.epochs,
        steps=options.steps,
        gpus=gpus,
        needs_gpus=options.gpus is not None or launched_on_gpus,
        parallelism=parallelism,
        network=None if options.network is None else parse_network_rate(options.network),
        power_limit_w=None if options.power_limit is None else parse_power_limit(options.power_limit),
        adapters=build_adapters(options, source.kind, phase, parallelism),
        quantization=build_quantization(options, precision, source.kind, phase),
        cache_dtype=read_cache_dtype(options),
        generated=options.generate,
        paged=bool(options.paged),
        name=options.name or _name_of(source),
        compiled=bool(options.compile) and source.kind is ModelKind.JAX_FUNCTION,
        trace_limit_s=options.trace_limit or TRACE_LIMIT_S,
        defaulted=tuple(name for name in _REPORTED if getattr(options, name) is None),
    )


def _check_ranges(options: WorkloadOptions) -> None:
    """Refuse numbers that are too small, or so large that they are typing errors."""
    limited = [(name, getattr(options, name), spec) for name, spec in OPTION_TABLES.options.items()]
    for name, value, spec in limited:
        if value is not None and spec.least is not None and value < spec.least:
            raise InvalidInput(f"--{name.replace('_', '-')} is {value}, but it must be at least {spec.least}")
    if options.epochs is not None and not options.epochs > 0:
        raise InvalidInput(f"--epochs is {options.epochs:g}, but it must be above 0")
    if options.load_s is not None and not options.load_s >= 0:
        raise InvalidInput(f"--load-s is {options.load_s:g}, but it must be 0 or more")
    for name, value, spec in limited:
        if value is not None and spec.most is not None and value > spec.most:
            option = f"--{name.replace('_', '-')} is {min(value, 1e300):g}"
            raise InvalidInput(f"{option}, but it can be at most {spec.most:,.0f}: check its digits")


def count_launched_processes(command: Sequence[str]) -> tuple[int, int, bool]:
    """Return how many processes a command's launcher starts, on how many nodes, and whether it asks for GPUs."""
    try:
        parsed = read_command(tuple(command))
    except LeadlineError:  # not a Python command: its launcher is unknown
        return 1, 1, False
    return parsed.local_processes * parsed.nodes, parsed.nodes, parsed.needs_gpus


def _refuse_without_effect(kind: ModelKind, options: WorkloadOptions) -> None:
    """Refuse an option that has no effect on this kind of model."""
    names, instead = OPTION_TABLES.without_effect[kind]
    for name in names:
        if getattr(options, name) is not None:
            raise InvalidInput(f"--{name.replace('_', '-')} has no effect here: {instead}")
    if options.generate is not None and kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"--generate is {options.generate}, but only the config.json of a language model can generate"
        )
    if options.compile and kind not in _COMPILED:
        raise InvalidInput(
            "--compile is for functions, names and config.json: a script compiles what it does itself, and a saved "
            "module or ONNX file is fixed; leave it out"
        )
    if options.trace_limit is not None and kind is not ModelKind.COMMAND:
        raise InvalidInput(f"--trace-limit is {options.trace_limit}, but only a script is traced so: leave it out")
    if options.launch and kind in (ModelKind.HLO, ModelKind.JAX_FUNCTION):
        raise InvalidInput(f"--launch is {options.launch[:40]}, but XLA launches a whole module: leave it out")


def _fused(kind: ModelKind, options: WorkloadOptions) -> WorkloadOptions:
    """Return the options with the fusion that ``--compile`` stands for in a PyTorch model."""
    if not options.compile or kind is ModelKind.JAX_FUNCTION:
        return options
    if options.fusion not in (None, Fusion.COMPILER):
        raise InvalidInput(f"--compile fuses as --fusion compiler, but --fusion is {options.fusion}: leave one out")
    return msgspec.structs.replace(options, fusion=Fusion.COMPILER.value)


_COMPILED = (ModelKind.HF_CONFIG, ModelKind.FUNCTION, ModelKind.JAX_FUNCTION)
LARGEST_SIZE = 10**15
"""Dimensions and bytes per sample above this are typing errors."""
_REPORTED = ("phase", "batch", "seq", "precision", "optimizer", "accumulate", "checkpointing", "workers", "gpus")


def parse_input(text: str) -> InputShape:
    """Read one input shape: ``64x3x224x224`` or ``8x512:int64``; float32 without a dtype.

    Raises:
        InvalidInput: not a shape, a dimension is 0 or too large, or the dtype is unknown.
    """
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"--input {text!r} is not a shape: write for example 64x3x224x224 or 8x512:int64")
    shape = tuple(int(size) for size in match["shape"].split("x"))
    if max(shape) > LARGEST_SIZE:
        raise InvalidInput(f"--input {text!r} has a dimension of {max(shape):g}: check its digits")
    if 0 in shape:
        raise InvalidInput(f"--input {text!r} has a dimension of 0: every dimension must be at least 1")
    dtype = match["dtype"] or "float32"
    if dtype not in BYTES_PER_ELEMENT:
        raise UnknownName("dtype", dtype, BYTES_PER_ELEMENT)
    return InputShape(shape, dtype)


def _attention(options: WorkloadOptions, kind: ModelKind) -> AttentionImplementation | None:
    if options.attention is not None and kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(f"--attention is {options.attention}, but it works for a config.json only: leave it out")
    return parse_choice(AttentionImplementation, options.attention, "attention")


def _size(value: int | str | None) -> int | None:
    if value is None:
        return None
    size_bytes = value if isinstance(value, int) else parse_bytes(value, bare_bytes=1)
    if size_bytes > LARGEST_SIZE:
        raise InvalidInput(f"--bytes-per-sample is {value}, but a sample can hold at most 1 PB: check its digits")
    if size_bytes < 0:
        raise InvalidInput(f"--bytes-per-sample is {value}, but a size is never negative")
    return size_bytes


def _name_of(source: ModelSource) -> str:
    if source.kind is ModelKind.COMMAND:
        script = next((word for word in source.argv if word.endswith(".py")), source.argv[0])
        return Path(script).stem
    if source.library:
        return source.reference.partition(":")[2]
    path = Path(source.reference.rpartition(":")[0] or source.reference)
    if path.parent.parent.name == "snapshots":  # a revision in the cache of the Hugging Face hub
        return path.parent.parent.parent.name.rpartition("--")[2]
    return path.parent.name if path.name == "config.json" and path.parent.name else path.stem


def _loss(options: WorkloadOptions, kind: ModelKind, phase: Phase) -> LossKernel:
    if options.loss is not None and (kind is not ModelKind.HF_CONFIG or phase is not Phase.TRAINING):
        raise InvalidInput(f"--loss is {options.loss}, but it is for the training of a config.json: leave it out")
    return parse_choice(LossKernel, options.loss, "loss") or LossKernel.PLAIN
