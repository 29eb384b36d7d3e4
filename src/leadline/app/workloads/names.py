"""Models that are named instead of described: those of timm and torchvision, and those of the Hugging Face hub."""

import os
import re
from pathlib import Path

from leadline.core.errors import InvalidInput, excerpt
from leadline.core.workload import LIBRARIES
from leadline.files.read import is_file

HUB = "hf:"
"""Prefix of a model of the Hugging Face hub, or of a folder with a ``config.json``."""
_LIBRARY_NAME = re.compile(rf"({'|'.join(LIBRARIES)}):[\w./-]{{1,200}}")
_HUB_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
"""Owner and name of a model of the Hugging Face hub."""


def is_library_model(word: str) -> bool:
    """Return whether a word is the name of a library's model, such as ``timm:resnet50``."""
    return _LIBRARY_NAME.fullmatch(word) is not None


def hub_config(name: str, base: Path | None = None) -> Path:
    """Return the ``config.json`` that ``hf:name`` stands for: of a folder, which counts from ``base``, or of the cache.

    Raises:
        InvalidInput: there is no such folder, and the cache does not have the model. The message names the download.
    """
    folder = Path(name) if base is None else base / name
    config = folder / "config.json"
    if name and is_file(config):
        return config
    if cached := cached_config(name):
        return cached
    if _HUB_NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"{excerpt(HUB + name)!r} names no folder with a config.json and no model: write it as {HUB}OWNER/MODEL"
        )
    raise InvalidInput(
        f"{HUB}{name} is neither a folder with a config.json nor a model in the cache {_hub_cache()}, and Leadline "
        f"downloads nothing: fetch the small file alone with: hf download {name} config.json"
    )


def cached_config(name: str) -> Path | None:
    """Return the ``config.json`` of a model in the Hugging Face cache, of the revision that was used last."""
    if not _HUB_NAME.fullmatch(name) or ".." in name:
        return None
    revisions = _hub_cache().glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json")
    return max(revisions, key=lambda config: config.stat().st_mtime, default=None)


def _hub_cache() -> Path:
    home = Path(
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
