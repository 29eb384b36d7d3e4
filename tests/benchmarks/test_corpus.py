"""The table of training scripts and the files beside it say the same."""

import ast

import pytest

from benchmarks.corpus import CORPUS, FOLDER


def test_every_file_is_in_the_table_once_and_every_row_has_its_file():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(script.name for script in CORPUS)
    assert len(CORPUS) >= 24


@pytest.mark.parametrize("script", CORPUS, ids=lambda script: script.name)
def test_no_script_knows_leadline_or_needs_a_download(script):
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else name.name
        for node in ast.walk(ast.parse(script.path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    roots = {name.partition(".")[0] for name in imported}
    assert not {"leadline", "torchvision", "urllib", "requests", "datasets"} & roots


def test_a_torchrun_script_is_started_with_its_processes():
    script = next(script for script in CORPUS if script.name == "ddp_mlp")
    assert "--nproc_per_node=2" in script.command()
    assert str(script.path) in script.command()
