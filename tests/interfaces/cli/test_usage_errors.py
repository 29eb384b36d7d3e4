"""A wrong command line gets an error in one sentence, with a suggestion."""

import pytest

from leadline.interfaces.cli.command import read_table, suggest_options
from leadline.interfaces.cli.main import main

OPTIONS = ["--on", "--gpus", "--time", "--memory", "--yes", "--batch", "--seq", "--dry-run", "--json", "--help"]


@pytest.mark.parametrize("typed", ["--system", "--device", "--target", "--cluster", "--partition", "-p"])
def test_other_names_for_a_target_suggest_on(typed):
    assert suggest_options(typed, OPTIONS) == ["--on"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--gpu", ["--on", "--gpus"]),
        ("--time-limit", ["--time"]),
        ("--walltime", ["--time"]),
        ("-t", ["--time"]),
        ("--mem", ["--memory"]),
        ("--batch-size", ["--batch"]),
        ("--batch_size=4", ["--batch"]),
        ("--seq-len", ["--seq"]),
        ("--tiem", ["--time"]),
        ("--memroy", ["--memory"]),
        ("--JSON", ["--json"]),
        ("--dry", ["--dry-run"]),
        ("--frobnicate", []),
        ("--sys", ["--on"]),
        ("--dr", []),
    ],
)
def test_synonyms_come_before_similar_spelling(typed, expected):
    assert suggest_options(typed, OPTIONS) == expected


def test_no_option_is_a_synonym_of_itself():
    assert not [option for option, words in read_table("synonyms").items() if option[2:] in words]


def test_time_limit_suggests_the_deadline_in_commands_without_time():
    assert suggest_options("--time-limit", ["--deadline", "--budget"]) == ["--deadline"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["submit", "--system", "Pitzer", "--", "true"], "no such option: --system; did you mean --on? (put"),
        (["estimate", "x.json", "--wall-clock", "2h"], "no such option: --wall-clock; run leadline estimate --help"),
        (["recommend", "x.json", "--walltime", "2h"], "no such option: --walltime; did you mean --deadline?"),
        (["estimate", "x.json", "-bs", "3"], "no such option: -bs; did you mean --batch?"),
        (["calibrate", "--gpu"], "no such option: --gpu; did you mean --device?\n"),
        (["estimate", "x.json", "--batch", "many"], "invalid value for '--batch': "),
        (["estimate", "x.json", "--batch"], "option '--batch' requires an argument; run leadline estimate --help"),
        (["estimate", "x.json", "--json=3"], "option '--json' does not take a value"),
        (["history", "list", "--limit", "0"], "invalid value for '--limit': "),
        (["systems", "show"], "missing argument 'NAME'; run leadline systems show --help"),
        (["devices", "show", "A100", "SXM4"], "got unexpected extra argument"),
        (["systems", "lst"], "no such command 'lst'. Did you mean 'list'"),
        (["estimat"], "unknown command 'estimat': did you mean 'estimate'?\n"),
        (["submit", "--on", "Pizter:gpu", "--", "true"], "unknown system 'Pizter': did you mean 'Pitzer'"),
        (["submit", "--on", "loca", "--", "true"], "unknown system 'loca': did you mean 'local'"),
        (["submit", "--on", "Pitzer:gpuu", "--", "true"], "unknown partition of Pitzer 'gpuu': did you mean 'gpu"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_gets_one_sentence(words, says, capsys):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("group", ["systems", "devices", "history"])
def test_a_group_without_a_command_prints_its_help(group, capsys):
    assert main([group]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Usage: ")
    assert printed.err == ""
