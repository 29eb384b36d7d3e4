"""Read the fields of one configuration, with errors that name them, and track assumed defaults."""

from collections.abc import Iterator
from typing import Any

from leadline.core.errors import InvalidInput, excerpt

Config = dict[str, Any]

MOST, MOST_LAYERS = 10**9, 2_000
"""Larger sizes and more layers are typing errors: each layer is expanded."""
COUNTED = frozenset({"num_hidden_groups"})
"""Names of numbers of layers without the word."""


def model_values(config: Config, *names: str) -> Iterator[Any]:
    """Yield the values of fields that are set, of the whole model, then of its language model (``text_config``)."""
    inner = config.get("text_config")
    for holder in (config, inner if isinstance(inner, dict) else {}):
        yield from (holder[name] for name in names if holder.get(name) is not None)


class ConfigFields:
    """Reads sizes from one configuration, and tracks the ones it had to assume."""

    def __init__(self, config: Config, reference: str) -> None:
        self.config, self.reference, self.assumed = config, reference, list[str]()

    @property
    def family(self) -> str:
        """The configuration's ``model_type``."""
        return str(self.config["model_type"])

    def size(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return the first of ``names`` that is set, or the architecture's published default, and note that."""
        value = self.optional(*names, least=least)
        if value is not None:
            return value
        if default is None:
            raise InvalidInput(f"{self.reference} has no {names[0]}, which this model_type needs: add it")
        self.assumed.append(f"{names[0]} = {default}")
        return default

    def optional(self, *names: str, least: int = 1) -> int | None:
        """Return the first of ``names`` that is set, or ``None``."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise self._error(name, value, "a positive whole number" if least else "a whole number from 0 on")
            most = MOST_LAYERS if "layer" in name or name in COUNTED else MOST
            if value > most:
                raise InvalidInput(
                    f"{self.reference}: {name} is {excerpt(repr(value))}, but at most {most:,}: check its digits"
                )
            return value
        return None

    def listed(self, name: str) -> list[Any]:
        """Return a field that is a list; empty if it is not set."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, list):
            raise self._error(name, value, "a list")
        return value or []

    def flag(self, *names: str, default: bool) -> bool:
        """Return the first boolean field that is set."""
        for name in names:
            value = self.config.get(name)
            if value is not None and not isinstance(value, bool | int):
                raise self._error(name, value, "true or false")
            if value is not None:
                return bool(value)
        return default

    def is_set(self, name: str, *, default: bool) -> bool:
        """Return whether a field holds anything but null. ``default`` is for a file without the field."""
        return self.config[name] is not None if name in self.config else default

    def word(self, *names: str, default: str) -> str:
        """Return the first text field that is set."""
        for name in names:
            value = self.config.get(name)
            if value and not isinstance(value, str):
                raise self._error(name, value, "a name")
            if value:
                return str(value)
        return default

    def rate(self, *names: str, default: float = 0.0) -> float:
        """Return the first dropout rate that is set, from 0 to 1."""
        for name in names:
            if self.config.get(name) is not None:
                return self._fraction(name, self.config[name], "rate")
        return default

    def share(self, *names: str, default: float) -> float:
        """Return the first share of a head's dimensions. Newer files have it in ``rope_parameters``."""
        rope = self.config.get("rope_parameters")
        for name in names:
            inner = rope.get(name) if isinstance(rope, dict) else None
            value = self.config.get(name, inner)
            if value is not None:
                return self._fraction(name, value, "share")
        return default

    def _fraction(self, name: str, value: object, kind: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self._error(name, value, f"a {kind} from 0 to 1")
        return float(value)

    def _error(self, name: str, value: object, kind: str) -> InvalidInput:
        return InvalidInput(f"{self.reference}: {name} is {excerpt(repr(value))}, but it must be {kind}")

    def per_head(self, hidden: int, heads: int) -> int:
        """Return the width of one head, which must divide the hidden width."""
        if hidden % heads:
            raise InvalidInput(
                f"{self.reference}: a hidden size of {hidden} cannot be split over {heads} heads: correct one of them"
            )
        return hidden // heads

    def labels(self) -> int:
        """Return the number of labels of a classifier, by default 2."""
        labels = self.config.get("id2label")
        return len(labels) if isinstance(labels, dict | list) and labels else self.optional("num_labels") or 2

    def windows(self, layers: int, *, pattern: int = 0, default: int = 0, used: bool = True) -> list[int | None]:
        """Return the sliding window of each layer's attention (``None``: all tokens).

        ``layer_types`` decides if the file has it. Otherwise every ``pattern``-th layer sees all tokens and the others
        the window. Without a pattern, all layers are alike but the first ``max_window_layers``. ``default`` is for a
        file without the field, and ``used`` for one that does not say whether its window is used.
        """
        if not self.flag("use_sliding_window", default=used):
            return [None] * layers
        window = self.optional("sliding_window", "local_attention", least=0) or None
        if default and "sliding_window" not in self.config:
            window = self.size("sliding_window", default=default)
        types = self.config.get("layer_types")
        if isinstance(types, list) and len(types) == layers:
            chunk = self.optional("attention_chunk_size")
            by_type = {"sliding_attention": window, "chunked_attention": chunk}
            return [by_type.get(str(kind)) for kind in types]
        every = self.optional("sliding_window_pattern", "global_attn_every_n_layers") or pattern
        if not every:
            first = self.optional("max_window_layers", least=0) or 0
            return [window if layer >= first else None for layer in range(layers)]
        return [window if (layer + 1) % every else None for layer in range(layers)]

    def architecture(self) -> str:
        """Return the class whose weights the file describes, or "" if it names none."""
        architectures = self.config.get("architectures")
        return str(architectures[0]) if isinstance(architectures, list) and architectures else ""

    def is_bare(self) -> bool:
        """Return whether the file describes a model without a head. ``GPT2LMHeadModel`` has one despite its name."""
        return self.architecture().endswith("Model") and not self.architecture().endswith("LMHeadModel")
