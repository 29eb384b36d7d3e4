"""The folder of fitted models that come with Leadline."""

from importlib.resources import files
from pathlib import Path

FOLDER = Path(str(files("leadline.training") / "shipped"))


def content_of(name: str) -> bytes:
    """Return what a shipped file holds."""
    return (FOLDER / name).read_bytes()
