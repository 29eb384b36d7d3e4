"""Adapters as options: a rank, a method of peft with its settings or its file, and the layers they are for."""

from pathlib import Path
from typing import Any

from leadline.app.workloads.options import WorkloadOptions
from leadline.core.documents import parse_json
from leadline.core.errors import InvalidInput
from leadline.core.workload import Adapters, AdapterSetting, ModelKind, Parallelism, Phase, Recompute
from leadline.files.read import read_input_text

MOST_FILE_BYTES = 2**20
PARTS_OF_LAYERS = ("layers_to_transform", "layer_replication", "target_parameters", "exclude_modules", "alora_layers")
"""Fields of peft that choose layers in ways that are not estimated."""
RANKS = "rank_pattern"
EMBEDDINGS = {"embed_tokens", "lm_head", "wte"}


def build_adapters(options: WorkloadOptions, kind: ModelKind, phase: Phase, plan: Parallelism) -> Adapters | None:
    """Return the adapters of the options; ``None`` without ``--lora`` and ``--peft``.

    Raises:
        InvalidInput: the model has no adapters, another option contradicts them, or a setting is wrong.
        UnknownName: unknown method or setting.
    """
    if options.lora is None and options.peft is None:
        names = ("lora_embeddings", "lora_targets", *(["quantize"] if phase is Phase.TRAINING else []))
        for name in names:
            if getattr(options, name):
                raise InvalidInput(f"--{name.replace('_', '-')} needs adapters: add --lora RANK or --peft METHOD")
        return None
    option = f"--lora is {options.lora}" if options.peft is None else f"--peft is {options.peft}"
    word = option.split(maxsplit=1)[0]
    if kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(f"{option}, but only a config.json can be adapted: a script or function is traced as it is")
    if phase is not Phase.TRAINING:
        raise InvalidInput(f"{word} trains adapters: leave it out of inference, where they are merged into the weights")
    if plan.divides_layers:
        raise InvalidInput(f"{word} works with --sharding only: leave the other options of several GPUs out")
    adapters = Adapters() if options.peft is None else _read_method(options.peft)
    targets = adapters.targets if options.lora_targets is None else read_targets(options.lora_targets)
    adapters = Adapters(options.lora or 0, bool(options.lora_embeddings) or adapters.embeddings, adapters.method,
                        targets, adapters.settings)  # fmt: skip
    _check(adapters, options)
    return adapters


def _check(adapters: Adapters, options: WorkloadOptions) -> None:
    """Refuse unknown methods and settings, and options that the method does not go with."""
    # Most commands have no adapters, and this module loads with every command that takes a workload.
    from leadline.graphs.hf_config.peft_methods import AdapterPlan  # noqa: PLC0415 - loads on use

    place = AdapterPlan(adapters).method.place
    if place != "layers" and options.lora_targets is not None:
        raise InvalidInput(f"--lora-targets has no effect on {adapters.method}, which adapts no linear layers")
    recomputes = options.checkpointing or options.recompute not in (None, Recompute.NONE.value)
    if place == "keys" and recomputes:
        raise InvalidInput(f"peft cannot run {adapters.method} with activation checkpointing: leave one of them out")


def read_targets(text: str) -> tuple[str, ...]:
    """Read ``--lora-targets``: names separated by commas, ``all-linear``, or a regular expression of whole paths."""
    names = tuple(name.strip() for name in text.split(","))
    if all(name and name.replace("_", "").replace("-", "").replace(".", "").isalnum() for name in names):
        return names
    if not text.strip(", "):
        raise InvalidInput("--lora-targets is empty: write for example q_proj,v_proj or all-linear")
    return (f"re:(?:{text})$",)


def _read_method(text: str) -> Adapters:
    """Read ``--peft``: ``METHOD``, ``METHOD:name=value,…``, or a file that peft has saved."""
    if text.endswith(".json"):
        return _read_file(Path(text))
    name, _, pairs = text.partition(":")
    settings = []
    for pair in filter(None, pairs.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not value:
            raise InvalidInput(
                f"--peft {text!r} has {pair!r}: write settings as in lora:use_dora=true,lora_dropout=0.05"
            )
        settings.append((key.strip(), _read_value(value.strip())))
    return Adapters(method=_name(name), targets=(), settings=tuple(settings))


def _name(text: str) -> str:
    return text.strip().lower().replace("_", "-")


def _read_value(text: str) -> AdapterSetting:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _read_file(path: Path) -> Adapters:
    """Read an ``adapter_config.json`` of peft. Fields that change neither sizes nor steps are not used."""
    from leadline.graphs.hf_config.peft_methods import find_method  # noqa: PLC0415 - loads on use

    label = f"--peft {path}"
    content = parse_json(read_input_text(path, most=MOST_FILE_BYTES, label=label), label=label)
    if not isinstance(content, dict) or not isinstance(content.get("peft_type"), str):
        raise InvalidInput(f"{label} has no peft_type: give the adapter_config.json that peft has saved")
    method = _name(content["peft_type"])
    defaults = find_method(method).defaults
    unread = [name for name in (*PARTS_OF_LAYERS, *([RANKS] if method == "lora" else [])) if content.get(name)]
    if unread:
        raise InvalidInput(
            f"{label} sets {unread[0]}, which is not estimated: remove it, and name layers in target_modules"
        )
    fields = _flatten(content)
    settings = tuple((name, value) for name, value in fields.items() if name in defaults or name.endswith("dropout"))
    targets = content.get("target_modules")
    return Adapters(
        embeddings=bool(EMBEDDINGS & _names(content, "modules_to_save", label)), method=method, settings=settings,
        targets=read_targets(targets) if targets and isinstance(targets, str)
        else tuple(sorted(_names(content, "target_modules", label))),
    )  # fmt: skip


def _names(content: dict[str, Any], field: str, label: str) -> set[str]:
    names = content.get(field) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"{label} has {field} = {names!r:.60}: give a list of names of layers")
    return set(names)


def _flatten(content: dict[str, Any]) -> dict[str, AdapterSetting]:
    """Return the plain fields, lists of words joined, and the fields of sections, each of which counts as true."""
    fields: dict[str, AdapterSetting] = {}
    for name, value in content.items():
        if isinstance(value, dict) and value:
            fields |= {name: True, **_flatten(value)}
        elif isinstance(value, list):
            fields[name] = "+".join(map(str, value))
        elif isinstance(value, bool | int | float | str):
            fields[name] = value
    return fields
