"""A section that shows a measured number names the command that measures it again, in a table and in prose."""

import re
from pathlib import Path

import pytest

from benchmarks.command import BENCHMARKS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
UNIT = r"(?:%|times|×|s|ms|h|MB|GB|MiB|GiB)(?![/\w])"
CELL = re.compile(rf"^\|.*\| ?\*{{0,2}}[+−-]?\d[\d.,]*\*{{0,2}} {UNIT}")
"""A line of a table with a cell that begins with a number and its unit."""
NUMBER = re.compile(rf"\d\*{{0,2}} {UNIT}")
MARKED = re.compile(r"\b(?:measured|errors?|targets?|replayed)\b")
"""Words that mark a number of the same paragraph as measured."""
WHOLE_PAGE = "every number on this page"
"""A page whose beginning names a benchmark and says this needs no further name."""
FROM_ELSEWHERE = {
    ("gpu-memory", "Driver context"): "Published bare contexts",
    ("gpu-memory", "XLA's plan"): "No benchmark repeats this table",
}
"""Sections with numbers of no benchmark, and what they say instead."""
NOT_PROMISED = {"quick"}
"""Compares ratios with their limits in continuous integration; nothing shows its numbers."""


def sections(text):
    """Return the text of each section of a page by its heading, without code; the beginning has none."""
    found, heading, code = {"": []}, "", False
    for line in text.splitlines():
        code ^= line.lstrip().startswith("```")
        if line.startswith("## ") and not code:
            heading = line[3:]
        elif not code:
            found.setdefault(heading, []).append(line)
    return {heading: "\n".join(lines) for heading, lines in found.items()}


def shows_measured_number(text):
    """Return whether a section has a table or a paragraph with a measured number."""
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if not part.lstrip().startswith("|")]
    in_prose = any(MARKED.search(part) and NUMBER.search(part) for part in paragraphs)
    return in_prose or any(CELL.match(line) for line in text.splitlines())


def named_benchmarks(text):
    """Return the benchmarks whose commands a page names, and the results that they write under another name."""
    apart = re.findall(r"dev bench [\w-]+ --only \w+ --json benchmarks/results/([\w-]+)\.json", text)
    return {name for name in re.findall(r"dev bench ([\w-]+)", text) if name in BENCHMARKS}.union(apart)


def unnamed_sections(page):
    """Return the headings of a page's sections that show a measured number and name no command."""
    parts = sections(page.read_text(encoding="utf-8"))
    if named_benchmarks(parts[""]) and WHOLE_PAGE in " ".join(parts[""].split()):
        return []
    elsewhere = {heading for name, heading in FROM_ELSEWHERE if name == page.stem}
    return [
        heading
        for heading, text in parts.items()
        if heading not in elsewhere and shows_measured_number(text) and not named_benchmarks(text)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_section_with_measured_numbers_names_its_command(page):
    assert unnamed_sections(page) == []


@pytest.mark.parametrize(("page", "heading"), FROM_ELSEWHERE)
def test_a_section_with_numbers_of_no_benchmark_says_so(page, heading):
    text = sections((ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8"))[heading]
    assert shows_measured_number(text)
    assert FROM_ELSEWHERE[page, heading] in " ".join(text.split())


def test_the_pages_of_accuracy_have_measured_numbers():
    measured = {page.stem for page in PAGES if shows_measured_number(page.read_text(encoding="utf-8"))}
    assert {"dnn", "harp", "plane", "memory", "gpu-memory", "intervals", "manage-jobs"} <= measured


@pytest.mark.parametrize(
    ("text", "unnamed"),
    [
        ("# A\n\n## B\n\nThe measured error is 4.2 %.\n", ["B"]),
        ("# A\n\n## B\n\nThe measured error is 4.2 % (`python3 dev bench harp`).\n", []),
        (
            "# A\n`python3 dev bench harp` measures this.\n\n## B\n\n| x | y |\n| --- | --- |\n| time | **3.1** s |\n",
            ["B"],
        ),
        ("# A\n`python3 dev bench harp` prints every\nnumber on this page.\n\n## B\n\n| time | 3.1 s |\n", []),
        ("# A\n\n## B\n\nFiles are read anew at 150 MB/s, which is not measured.\n", []),
        ("# A\n\n## B\n\n```console\nmeasured 3 s\n```\n", []),
    ],
)
def test_a_number_without_a_command_is_noticed(tmp_path, text, unnamed):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert unnamed_sections(page) == unnamed


def test_every_result_belongs_to_a_command_that_a_page_names():
    named = set().union(*(named_benchmarks(page.read_text(encoding="utf-8")) for page in PAGES))
    for result in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert result.stem in named | listed_benchmarks(), f"no page names the command of {result.name}"


def test_the_readme_lists_every_benchmark_of_promised_numbers():
    assert listed_benchmarks() == {*BENCHMARKS} - NOT_PROMISED


def listed_benchmarks():
    """Return the names in the README's list of benchmarks."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"`python3 dev bench NAME` measures every promised number.*?\n\n", text, re.DOTALL)
    return {name for name in re.findall(r"`([\w-]+)`", listed) if name in BENCHMARKS}
