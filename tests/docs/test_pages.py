"""Every command of the tutorial, guides and explanations prints the output that the page shows, ignoring numbers."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("produce", DOCS / "produce.py")
produce = importlib.util.module_from_spec(SPEC)
sys.modules["produce"] = produce
SPEC.loader.exec_module(produce)

ALIKE = 0.6
"""Share of a block's lines that must match word for word, ignoring numbers."""
WITHOUT_COMMANDS = {
    "name-a-model": "needs timm or torchvision, which the development tools do not include",
    "predict-queue-waits": "needs the accounting of a cluster with hundreds of jobs",
    "shell-completion": "changes the shell's start-up files",
    "architecture": "shows no commands",
    "queue-waits": "shows no commands",
    "why": "shows no commands",
}
NEEDS = {
    "ask-in-your-words": (), "connect-an-assistant": ("mcp",), "estimate-a-jax-model": ("jax", "flax", "optax"),
    "estimate-llm-inference": (), "export-an-answer": ("jinja2",), "manage-jobs": (), "run-a-pipeline": ("watchfiles",),
    "use-the-page": ("fastapi",),
}  # fmt: skip
"""Packages that the commands of a page need instead of torch."""


def quicker(command):
    """Return the command with the shortest calibration or measurement."""
    command = re.sub(r"^(leadline measure .*--minutes) \S+", r"\1 0.1", command)
    return re.sub(r"^leadline calibrate.*", "leadline calibrate --budget 10", command)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", produce.PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_prints_the_output_below_it(page, tmp_path):
    for package in NEEDS.get(page.stem, ("torch",)):
        pytest.importorskip(package)
    blocks = list(produce.work_through(page, tmp_path, quicker))
    assert blocks or page.stem in WITHOUT_COMMANDS
    for block in blocks:
        assert block.code == 0, f"{block.command}: {block.printed}"
        assert block.here or produce.likeness(block.shown, block.printed) >= ALIKE, (
            f"the output of {block.command} differs from {page.name}: run docs/produce.py\n{block.printed}"
        )


def test_likeness_ignores_numbers_but_not_words():
    assert produce.likeness("A100  47m 35s  24m 35s – 1h 32m  20.2 GiB", "A100  3.5 s  1.20 s – 9.1 s  512 MiB\n") == 1
    assert produce.likeness("note: assumed: batch 1", "note: assumed: sequence 1") == 0
    assert produce.likeness("0123456789ab train: 3 GPUs", "ba9876543210 train: 4 GPUs") == 1


def test_a_page_shows_output_below_every_command_that_prints():
    for page in produce.PAGES:
        for match in produce._BLOCK.finditer(page.read_text(encoding="utf-8")):
            assert match["name"] or match["shown"] or match["command"].startswith("mkdir") or " > " in match["command"]
