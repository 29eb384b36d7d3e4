"""Read the fields of one configuration, with errors that name them and a memory of what had to be assumed."""

from typing import Any

from leadline.core.errors import InvalidInput

Config = dict[str, Any]


class Fields:
    """Reads sizes out of one configuration, and remembers which it had to assume."""

    def __init__(self, config: Config, what: str) -> None:
        self.config, self.what, self.assumed = config, what, list[str]()

    def size(self, *names: str, default: int | None = None) -> int:
        """Return the first of ``names`` that is set; else the architecture's published default, noted."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise InvalidInput(f"{self.what}: {name} is {value!r}, but it must be a positive whole number")
            return value
        if default is None:
            raise InvalidInput(f"{self.what} has no {names[0]}, which this model_type needs: add it")
        self.assumed.append(f"{names[0]} = {default}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean field."""
        return bool(self.config.get(name, default))

    def word(self, *names: str, default: str) -> str:
        """Return the first text field that is set."""
        return str(next((self.config[name] for name in names if self.config.get(name)), default))

    def window(self) -> int | None:
        """Return the sliding window of attention, if it is in use."""
        if self.config.get("use_sliding_window") is False or self.config.get("sliding_window") is None:
            return None
        return self.size("sliding_window")

    def rate(self, *names: str, default: float = 0.0) -> float:
        """Return the first dropout rate that is set."""
        return float(next((self.config[name] for name in names if self.config.get(name) is not None), default))
