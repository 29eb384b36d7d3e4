"""Read how a checkpoint stores its weights: the ``quantization_config`` and the dtype of a ``config.json``.

Each method is one reader of its fields. A method without a reader is refused, because its sizes are unknown.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from leadline.core.documents import parse_json
from leadline.core.errors import InvalidInput
from leadline.core.workload import Precision, Quantization
from leadline.files.read import read_input_text
from leadline.graphs.hf_config.families import FAMILIES
from leadline.graphs.hf_config.fields import Config, model_values
from leadline.graphs.hf_config.weight_formats import (
    BY_TENSOR,
    ENGINE_FORMATS,
    INT8,
    ScaleTensor,
    WeightFormat,
    bitsandbytes_4bit,
    grouped,
)

MOST_CONFIG_BYTES = 2**24
LONGEST, MOST_REPEATS = 300, 5  # characters of a pattern, and repetitions in it
_NESTED = re.compile(r"[|*+}].*\)[*+{]")  # a repeated group that repeats within, whose search may never end
_SPELLINGS = (
    (re.compile(r"\b(?:language_model|model|transformer)(?:\\?\.)"), ""),
    (re.compile(r"\b(?:block_sparse_moe|feed_forward|ffn)\b"), "mlp"),
    (re.compile(r"\bmlp(\\?\.)router\b"), r"mlp\1gate"),
    (re.compile(r"\bshared_expert\b"), "shared_experts"),
)
"""Spellings of the same module in different families, and the name here."""


class ModulePatterns:
    """Names of modules: plain ones, which also hold all modules inside, ``*`` for any text, and ``re:`` expressions.

    Raises:
        InvalidInput: An expression is broken, too long, or repeats a repetition.
    """

    def __init__(self, patterns: Sequence[str], reference: str) -> None:
        self.plain: set[str] = set()
        self.expressions: list[re.Pattern[str]] = []
        for pattern in patterns:
            text = _respell(pattern.removeprefix("re:"))
            if not pattern.startswith("re:") and "*" not in pattern:
                self.plain.add(text.strip("."))
                continue
            if not pattern.startswith("re:"):
                text = rf"(?:.*\.)?{re.escape(text.strip('.')).replace(re.escape('*'), '.*')}(?:\.|$)"
            repeats = sum(text.count(sign) for sign in "*+{")
            if len(text) > LONGEST or repeats > MOST_REPEATS or _NESTED.search(text):
                raise InvalidInput(f"{reference}: the module pattern {pattern!r:.80} cannot be searched: simplify it")
            try:
                self.expressions.append(re.compile(text))
            except re.error as error:
                raise InvalidInput(f"{reference}: the module pattern {pattern!r:.80} is broken: {error}") from error

    def match(self, module: str) -> bool:
        """Return whether a module, such as ``layers.3.self_attn.q_proj``, is among the names or inside one of them."""
        parts = module.split(".")
        ends = range(len(parts) + 1)
        if any(".".join(parts[begin:end]) in self.plain for end in ends for begin in range(end)):
            return True
        return any(expression.match(module) for expression in self.expressions)


def _respell(text: str) -> str:
    for spelling, name in _SPELLINGS:
        text = spelling.sub(name, text)
    return text


class CheckpointQuantization(NamedTuple):
    """The weight formats of a checkpoint, each with the modules it is for, and the modules in none of them.

    Attributes:
        method: Name of the method in the file.
        formats: Formats with their modules; ``None`` for all linear layers.
        ignored: Modules whose weights stay in the checkpoint's dtype.
        experts_only: Only the weights of experts are in the format.
        with_head: The output layer is in it too.
    """

    method: str
    formats: tuple[tuple[WeightFormat, ModulePatterns | None], ...]
    ignored: ModulePatterns
    experts_only: bool = False
    with_head: bool = False

    def format_of(self, module: str, *, expert: bool = False, head: bool = False) -> WeightFormat | None:
        """Return the format of a linear layer's weight, or ``None`` if it is not quantized."""
        if (self.experts_only and not expert) or (head and not self.with_head) or self.ignored.match(module):
            return None
        return next((form for form, modules in self.formats if modules is None or modules.match(module)), None)

    @property
    def names(self) -> str:
        """The names of the formats."""
        return " and ".join(dict.fromkeys(form.name for form, _ in self.formats))


def read_quantization(config: Config, reference: str) -> CheckpointQuantization | None:
    """Return the quantization that a configuration names, or ``None`` without one.

    Raises:
        InvalidInput: The method is unknown, or one of its fields is.
    """
    section = next(model_values(config, *_SECTIONS), None)
    if section is None:
        return None
    if not isinstance(section, dict):
        raise InvalidInput(f"{reference}: quantization_config is {section!r:.80}, but it must be an object")
    method = section.get("quant_method")
    loads_in_bits = section.get("load_in_8bit") or section.get("load_in_4bit")
    method = "bitsandbytes" if method is None and loads_in_bits else str(method).lower().removeprefix("intel/")
    if method == "bitsandbytes" and not loads_in_bits:
        return None  # transformers skips it, and loads the weights as they are
    if method not in METHODS:
        raise InvalidInput(
            f"{reference}: the quantization method {method[:60]!r} is unknown, so the weights' size is too: known "
            f"are {', '.join(METHODS)}; remove quantization_config to estimate unquantized weights"
        )
    fields = _Fields(section, reference)
    read = METHODS[method](fields)
    formats = ((read, None),) if isinstance(read, WeightFormat) else read
    with_head = section.get("lm_head") is True or "lm_head" in fields.inner("extra_config").section
    return CheckpointQuantization(
        method, formats, fields.ignored(), experts_only=method == "mxfp4", with_head=with_head
    )


_SECTIONS = ("quantization_config", "compression_config")
FILES_BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files beside a ``config.json`` in which ModelOpt, AutoGPTQ and AutoAWQ write the quantization, and its method."""


def add_file_beside(config: Config, reference: str) -> tuple[Config, str]:
    """Return a configuration and the file that names its quantization: one beside ``config.json`` if only that does."""
    path = Path(reference)
    if path.name == "config.json" and next(model_values(config, *_SECTIONS), None) is None:
        for beside in filter(Path.is_file, map(path.with_name, FILES_BESIDE)):
            content = parse_json(read_input_text(beside, most=MOST_CONFIG_BYTES), label=str(beside))
            section = content.get("quantization", content) if isinstance(content, dict) else content
            named = {"quant_method": FILES_BESIDE[beside.name], **section} if isinstance(section, dict) else section
            return {**config, "quantization_config": named}, str(beside)
    return config, reference


def chosen_quantization(chosen: Quantization) -> CheckpointQuantization:
    """Return the quantization of all linear layers but the output layer and the routers, as engines do it on load."""
    return CheckpointQuantization(chosen.value, ((ENGINE_FORMATS[chosen], None),), ModulePatterns([], chosen.value))


class _Fields(NamedTuple):
    """The fields of one section, with errors that name them."""

    section: Config
    reference: str

    def bits(self, *names: str, default: int | None = None) -> int:
        """Return the bits of a weight, 1 to 8."""
        return self._whole(names, default, 1, 8, "a whole number from 1 to 8")

    def group(self, *names: str, default: int) -> int:
        """Return how many weights of a row share a scale; 0 for the row."""
        return max(self._whole(names, default, -1, 10**6, "-1 or a positive whole number"), 0)

    def tile(self, name: str) -> tuple[int, int] | None:
        """Return the rows and columns of a block, or ``None`` if there is none."""
        value = self.section.get(name)
        if value is None:
            return None
        whole = isinstance(value, list) and all(type(side) is int and 0 < side <= 10**6 for side in value)
        if not whole or len(value) != 2:
            raise self.error(name, value, "two positive whole numbers")
        return value[0], value[1]

    def inner(self, name: str) -> "_Fields":
        """Return the fields of an object in the section; none if it is absent."""
        value = self.section.get(name) or {}
        if not isinstance(value, dict):
            raise self.error(name, value, "an object")
        return _Fields(value, self.reference)

    def ignored(self) -> ModulePatterns:
        """Return the modules that are left out, by any of the fields' names."""
        patterns: list[str] = []
        for name in ("modules_to_not_convert", "ignore", "ignored_layers", "llm_int8_skip_modules", "exclude_modules"):
            value = self.section.get(name) or []
            if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                raise self.error(name, value, "a list of module names")
            patterns += value
        dynamic = self.inner("dynamic").section
        patterns += [f"re:{name[2:]}" for name in dynamic if name.startswith("-:")]
        patterns += [pattern for pattern, own in self.own_settings() if own.section.get("bits") in (16, 32)]
        return ModulePatterns(patterns, self.reference)

    def own_settings(self) -> Iterator[tuple[str, "_Fields"]]:
        """Yield patterns of modules with settings of their own (GPTQ's ``dynamic``, AutoRound's ``extra_config``)."""
        for table in ("dynamic", "extra_config"):
            for name in self.inner(table).section:
                plain = re.fullmatch(r"[\w.]+", name) and table == "extra_config"
                if not name.startswith("-:"):
                    own = {**self.section, **self.inner(table).inner(name).section}
                    yield name if plain else f"re:{name.removeprefix('+:')}", _Fields(own, self.reference)

    def error(self, name: str, value: object, kind: str) -> InvalidInput:
        """Return the error about a value."""
        return InvalidInput(f"{self.reference}: quantization_config has {name} {value!r:.80}, but it must be {kind}")

    def _whole(self, names: tuple[str, ...], default: int | None, least: int, most: int, kind: str) -> int:
        value = next((self.section[name] for name in names if self.section.get(name) is not None), default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(names[0], value, kind)
        return value


Formats = WeightFormat | tuple[tuple[WeightFormat, ModulePatterns | None], ...]


def _fp8(fields: _Fields) -> Formats:
    tile = fields.tile("weight_block_size")
    if tile is None:
        return ENGINE_FORMATS[Quantization.FP8]
    rows, columns = tile
    form = WeightFormat(f"fp8 in blocks of {rows} × {columns}", 8, (ScaleTensor(32, columns, rows=rows),))
    return form.scaled("float8-block")


def _gptq(fields: _Fields) -> Formats:
    """Read GPTQ or AutoRound, with the modules that have settings of their own before all others."""
    own = (each for each in fields.own_settings() if each[1].section.get("bits") not in (16, 32))
    special = tuple((_gptq_format(more), ModulePatterns([name], fields.reference)) for name, more in own)
    return (*special, (_gptq_format(fields), None))


def _gptq_format(fields: _Fields) -> WeightFormat:
    """Return GPTQ's format, which stores zero points even if they are all the same, and the group of each column."""
    bits, group = fields.bits("bits"), fields.group("group_size", default=128)
    form = grouped(f"{bits}-bit GPTQ", bits, group, zero_bits=bits)
    return form._replace(scales=(*form.scales, ScaleTensor(32, 1, rows=0)), saved=True)


def _awq(fields: _Fields) -> Formats:
    bits = fields.bits("bits", "w_bit", default=4)
    group = fields.group("group_size", "q_group_size", default=128)
    return grouped(f"{bits}-bit AWQ", bits, group, zero_bits=bits)


def _bitsandbytes(fields: _Fields) -> Formats:
    section = fields.section
    if section.get("load_in_4bit"):
        return bitsandbytes_4bit(double=bool(section.get("bnb_4bit_use_double_quant")))
    return INT8


def _groups(fields: _Fields) -> Formats:
    """Read the groups of compressed-tensors and ModelOpt: the weights' bits and scales, and their modules."""
    groups = fields.inner("config_groups").section
    formats = []
    for name in groups:
        group = fields.inner("config_groups").inner(name)
        if group.section.get("weights") is None:
            continue
        targets = group.section.get("targets") or ["Linear"]
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise fields.error("targets", targets, "a list of module names")
        modules = None if "Linear" in targets else ModulePatterns(targets, fields.reference)
        form = _group_format(group.inner("weights"))
        formats.append((form if group.section.get("input_activations") is None else _scaled(form), modules))
    if not formats:
        raise fields.error("config_groups", groups, "an object with the weights' bits in each group")
    return tuple(formats)


def _scaled(form: WeightFormat) -> WeightFormat:
    """Return a format whose sources are quantized as well, if there are products of that kind."""
    products = {"fp8": "float8", "fp4": "float4", "int8": "int8"}
    product = products.get(form.name.partition(" ")[0], "")
    blocks = "-block" if form.name == "fp8 in blocks" else ""
    return form.scaled(product + blocks) if product else form


def _group_format(weights: _Fields) -> WeightFormat:
    section, bits = weights.section, weights.bits("num_bits")
    small = section.get("type") == "float" and bits == 4
    kind = {"float": "fp", "int": "int"}.get(str(section.get("type")), "")
    if not kind:
        raise weights.error("type", section.get("type"), "float or int")
    if (tile := weights.tile("block_structure")) is not None:
        return WeightFormat(f"{kind}{bits} in blocks", bits, (ScaleTensor(32, tile[1], rows=tile[0]),))
    group = weights.group("group_size", default=0)
    name = f"{kind}{bits}" + (f" in groups of {group}" if group else "")
    if section.get("strategy") == "tensor":
        return WeightFormat(name, bits, BY_TENSOR)
    zero_bits = bits if section.get("symmetric") is False else 0
    return grouped(name, bits, group, scale_bits=8 if small else 16, zero_bits=zero_bits)


def _modelopt(fields: _Fields) -> Formats:
    if fields.section.get("config_groups"):
        return _groups(fields)
    algorithm = str(fields.section.get("quant_algo")).upper()
    if algorithm == "FP8":
        return ENGINE_FORMATS[Quantization.FP8]
    if algorithm == "NVFP4":
        return grouped("nvfp4", 4, fields.group("group_size", default=16), scale_bits=8).scaled("float4")
    if algorithm == "W4A16_AWQ":
        return grouped("4-bit AWQ", 4, fields.group("group_size", default=128))
    raise fields.error("quant_algo", fields.section.get("quant_algo"), "FP8, NVFP4 or W4A16_AWQ")


def _torchao(fields: _Fields) -> Formats:
    kind: object = fields.section.get("quant_type")
    options = fields.inner("quant_type_kwargs")
    if isinstance(kind, dict):
        default = fields.inner("quant_type").inner("default")
        kind, options = default.section.get("_type"), default.inner("_data")
    word = re.sub(r"[_\W]|config", "", str(kind).lower())
    if word.startswith("int4weightonly"):
        return grouped("torchao int4", 4, options.group("group_size", default=128), zero_bits=16)
    for dtype in ("int8", "float8"):
        form = grouped(f"torchao {dtype}", 8, 0, scale_bits=32)
        if word.startswith(f"{dtype}weightonly"):
            return form
        if word.startswith(f"{dtype}dynamicactivation{dtype}weight"):
            return form.scaled(dtype)
    raise fields.error("quant_type", kind, "a weight-only or dynamic int4, int8 or float8 of torchao")


def _hqq(fields: _Fields) -> Formats:
    weights = fields.inner("quant_config").inner("weight_quant_params")
    bits = weights.bits("nbits", default=4)
    return grouped(f"{bits}-bit HQQ", bits, weights.group("group_size", default=64), zero_bits=16)


def _quanto(fields: _Fields) -> Formats:
    forms = {"float8": 8, "int8": 8, "int4": 4, "int2": 2}
    kind = str(fields.section.get("weights"))
    if kind not in forms:
        raise fields.error("weights", fields.section.get("weights"), f"one of {', '.join(forms)}")
    small = forms[kind] < 8
    return grouped(f"quanto {kind}", forms[kind], 128 if small else 0, zero_bits=8 if small else 0)


METHODS: dict[str, Callable[[_Fields], Formats]] = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda _: grouped("fp8 by rows", 8, 0, scale_bits=32).scaled("float8"),
    "compressed-tensors": _groups,
    "modelopt": _modelopt,
    "mxfp4": lambda _: grouped("mxfp4", 4, 32, scale_bits=8),
    "gptq": _gptq,
    "auto-round": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "torchao": _torchao,
    "hqq": _hqq,
    "eetq": lambda _: grouped("EETQ int8", 8, 0),
    "quanto": _quanto,
    "bitnet": lambda _: WeightFormat("ternary BitNet", 2, (ScaleTensor(16, 0, rows=0),)),
}
"""``quant_method`` → reader of its fields."""


_PRECISIONS = {"float32": Precision.FP32, "float16": Precision.FP16, "bfloat16": Precision.BF16}


def stored_precision(config: Config, reference: str, *, quantized: bool) -> tuple[Precision, str]:
    """Return the precision that a checkpoint loads in with ``dtype="auto"``, and a note if the file does not name it.

    A ``quantized`` checkpoint computes in 16 bits, unless the file names another dtype.

    Raises:
        InvalidInput: The file names a dtype that Leadline does not estimate.
    """
    dtypes = (value for value in model_values(config, "dtype", "torch_dtype") if value and value != "auto")
    if (dtype := next(dtypes, None)) is not None:
        named = str(dtype).removeprefix("torch.")
        if named not in _PRECISIONS:
            raise InvalidInput(
                f"{reference} has the dtype {named[:40]!r}, which is not estimated: set --precision fp32, fp16 or bf16"
            )
        return _PRECISIONS[named], ""
    inner = config.get("text_config")
    family = str((inner if isinstance(inner, dict) else config).get("model_type") or config.get("model_type"))
    if quantized:
        precision, why = Precision.BF16, "since quantized weights are multiplied in 16 bits"
    elif family in FAMILIES and FAMILIES[family][1].float32:
        precision, why = Precision.FP32, f"as most published {family} checkpoints"
    else:
        precision, why = Precision.BF16, f"as most published {family} checkpoints have 16 bits"
    return precision, f"{reference} names no dtype: assumed {precision.value}, {why}; set it with --precision"
