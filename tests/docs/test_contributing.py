"""The files that contributors read first refer to files that exist, and the configuration files can be parsed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if "_build" not in page.parts and page.name != "CHANGELOG.md"
]
CONFIGURATION = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]
CREATED_BY_THE_READER = {"src/leadline/catalog/data/sites/lab.toml"}


def title(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_relative_link_of_a_page_leads_to_a_file(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_path_in_the_text_exists_in_the_repository(page):
    paths = re.findall(r"`((?:src|tests|docs|benchmarks|\.ci)/[\w./-]+)`", page.read_text(encoding="utf-8"))
    assert [path for path in paths if path not in CREATED_BY_THE_READER and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("path", CONFIGURATION, ids=title)
def test_a_configuration_file_is_valid_yaml(path):
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_workflow_runs_the_same_script_as_local_integration():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert "bash .ci/run" in workflow
    assert (ROOT / ".ci" / "run").exists()


def test_the_version_to_cite_is_the_version_of_the_package():
    from leadline import __version__

    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
