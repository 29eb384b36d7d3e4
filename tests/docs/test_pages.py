"""The tutorial and the guides: every command is run in order, and prints what the page shows, figures apart."""

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
"""Share of a block's lines that must still be printed word for word, figures apart."""


OF_A_SITE = {"queue-wait"}
"""Pages whose commands need the accounting of a cluster with hundreds of jobs."""
NEEDS = {"jax": ("jax", "flax", "optax"), "llm-inference": (), "plane": ()}
"""Packages that the commands of a page want, where it is not torch."""


def quicker(command):
    """Calibrate as briefly as it can be done: here it matters that it works."""
    return re.sub(r"^leadline calibrate.*", "leadline calibrate --budget 10", command)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", produce.PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_does_what_is_shown_below_it(page, tmp_path):
    for package in NEEDS.get(page.stem, ("torch",)):
        pytest.importorskip(package)
    blocks = list(produce.work_through(page, tmp_path, quicker))
    assert blocks or page.stem in OF_A_SITE
    for block in blocks:
        assert block.code == 0, f"{block.command}: {block.printed}"
        assert block.here or produce.likeness(block.shown, block.printed) >= ALIKE, (
            f"{block.command} prints other words than {page.name} shows: run docs/produce.py\n{block.printed}"
        )


def test_figures_do_not_count_and_words_do():
    assert produce.likeness("A100  47m 35s  24m 35s – 1h 32m  20.2 GiB", "A100  3.5 s  1.20 s – 9.1 s  512 MiB\n") == 1
    assert produce.likeness("note: assumed: batch 1", "note: assumed: sequence 1") == 0
    assert produce.likeness("0123456789ab train: 3 GPUs", "ba9876543210 train: 4 GPUs") == 1


def test_a_page_shows_output_below_every_command_that_prints():
    for page in produce.PAGES:
        for match in produce._BLOCK.finditer(page.read_text(encoding="utf-8")):
            assert match["name"] or match["shown"] or match["command"].startswith("mkdir") or " > " in match["command"]
