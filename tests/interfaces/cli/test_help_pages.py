"""The stored help is the help of the commands."""

import json

from docs.cli_reference import help_pages
from leadline.interfaces.cli.main import HELP_FILE, help_page, main

REWRITE = "run python docs/cli_reference.py"


def test_the_stored_help_is_that_of_the_commands():
    assert json.loads(HELP_FILE.read_text()) == help_pages(), REWRITE


def test_help_of_a_command_and_of_a_subcommand_comes_from_the_file(capsys):
    for arguments in (["fit", "--help"], ["systems", "list", "-h"], ["help", "fit"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out.startswith("Usage: leadline ")


def test_other_command_lines_have_no_stored_help():
    for arguments in ([], ["fit"], ["fit", "config.json", "--help"], ["submit", "--", "train", "--help"]):
        assert help_page(arguments) is None
