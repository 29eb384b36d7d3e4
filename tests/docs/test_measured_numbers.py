"""A page with a table of measurements names the command that measures them again."""

import re
from pathlib import Path

import pytest

from benchmarks.command import BENCHMARKS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MEASURED = re.compile(r"^\|.*\d(?:\.\d+)?\*{0,2} (?:%|times|×|s|ms|h|MB|GB)(?: |\|)")
"""A line of a table with a number and its unit."""


def measured_rows(text):
    """Return the table lines with measured numbers, without those of code blocks."""
    lines, code = [], False
    for line in text.splitlines():
        code ^= line.lstrip().startswith("```")
        if not code and MEASURED.match(line):
            lines.append(line)
    return lines


def named_benchmarks(text):
    """Return the benchmarks whose commands a page names, and the results that they write under another name."""
    apart = re.findall(r"dev bench [\w-]+ --only \w+ --json benchmarks/results/([\w-]+)\.json", text)
    return {name for name in re.findall(r"dev bench ([\w-]+)", text) if name in BENCHMARKS}.union(apart)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_with_measured_numbers_names_its_command(page):
    text = page.read_text(encoding="utf-8")
    assert named_benchmarks(text) or not measured_rows(text), f"{page.name} names no python3 dev bench NAME"


def test_the_pages_of_accuracy_have_measured_numbers():
    measured = {page.stem for page in PAGES if measured_rows(page.read_text(encoding="utf-8"))}
    assert {"dnn", "harp", "plane", "memory", "gpu-memory"} <= measured


def test_every_result_belongs_to_a_command_that_a_page_names():
    named = set().union(*(named_benchmarks(page.read_text(encoding="utf-8")) for page in PAGES))
    listed = (ROOT / "README.md").read_text(encoding="utf-8")
    for result in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert result.stem in named or f"`{result.stem}`" in listed, f"no page names the command of {result.name}"
