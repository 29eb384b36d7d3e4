"""A call runs as its command, in a process of its own."""

import json

import pytest

from leadline.core.errors import LeadlineError
from leadline.interfaces.chat.run_command import CommandRunner
from tests.interfaces.test_tools import LLAMA


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def test_the_answer_is_that_of_the_command(folder):
    line, text = CommandRunner(folder)("fit", {"workload": "config.json", "on": ["T4"], "batch": 2})
    assert line == f"leadline fit --on T4 --batch 2 {folder / 'config.json'}"
    assert "fits" in text


def test_no_file_of_the_folder_runs_as_a_module(folder):
    (folder / "json.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    (folder / "leadline.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    assert "T4" in CommandRunner(folder)("devices", {"name": "T4"})[1]
    assert not (folder / "ran").exists()


def test_a_failure_is_the_message_of_the_command(folder):
    with pytest.raises(LeadlineError, match=r"^unknown device 'nope'"):
        CommandRunner(folder)("devices", {"name": "nope"})


def test_an_estimate_has_its_interval_and_its_source(folder):
    _, text = CommandRunner(folder)("estimate", {"workload": "config.json", "on": ["T4"], "steps": 10})
    assert "90 % range" in text
    assert "Why, for T4" in text
