"""A wrong command line is answered in one sentence that says what to write instead."""

import pytest

from leadline.interfaces.cli.main import main
from leadline.interfaces.cli.usage_errors import MEANINGS, suggest_options

OPTIONS = ["--on", "--gpus", "--time", "--memory", "--yes", "--batch", "--seq", "--dry-run", "--json", "--help"]


@pytest.mark.parametrize("given", ["--system", "--device", "--target", "--cluster", "--partition", "-p"])
def test_every_way_to_say_where_means_on(given):
    assert suggest_options(given, OPTIONS) == ["--on"]


@pytest.mark.parametrize(
    ("given", "expected"),
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
def test_an_option_is_understood_by_meaning_and_only_then_by_letters(given, expected):
    assert expected == suggest_options(given, OPTIONS)


def test_no_option_is_given_as_another_way_to_say_itself():
    assert not [option for option, words in MEANINGS.items() if option[2:] in words]


def test_time_means_the_deadline_where_a_command_has_no_time():
    assert suggest_options("--time-limit", ["--deadline", "--budget"]) == ["--deadline"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["submit", "--system", "Pitzer", "--", "true"], "unknown option --system: did you mean --on; an option of"),
        (["estimate", "x.json", "--time-limit", "2h"], "unknown option --time-limit: leadline estimate --help"),
        (["recommend", "x.json", "--walltime", "2h"], "unknown option --walltime: did you mean --deadline"),
        (["estimate", "x.json", "-bs", "3"], "unknown option -bs: did you mean --batch"),
        (["calibrate", "--gpu"], "unknown option --gpu: did you mean --device?\n"),
        (["estimate", "x.json", "--batch", "many"], "--batch is 'many', but it must be a whole number, such as 8\n"),
        (["estimate", "x.json", "--epochs=many"], "--epochs is 'many', but it must be a number, such as 2.5\n"),
        (["estimate", "x.json", "--batch"], "--batch stands without a value: write one after it"),
        (["estimate", "x.json", "--json=3"], "--json takes no value: write it alone"),
        (["history", "list", "--limit", "0"], "--limit is '0', but it must be at least 1\n"),
        (["systems", "show"], "NAME is missing: write leadline systems show NAME;"),
        (["devices", "show", "A100", "SXM4"], "'SXM4' is too much: put a name that holds spaces in quotes"),
        (["systems", "lst"], "unknown command of leadline systems 'lst': did you mean 'list'?\n"),
        (["estimat"], "unknown command 'estimat': did you mean 'estimate'?\n"),
        (["submit", "--on", "Pizter:gpu", "--", "true"], "unknown system 'Pizter': did you mean 'Pitzer'"),
        (["submit", "--on", "loca", "--", "true"], "unknown system 'loca': did you mean 'local'"),
        (["submit", "--on", "Pitzer:gpuu", "--", "true"], "unknown partition of Pitzer 'gpuu': did you mean 'gpu"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_answered_in_one_sentence(words, says, capsys):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("group", ["systems", "devices", "history"])
def test_a_group_without_a_command_explains_itself(group, capsys):
    assert main([group]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Usage: ")
    assert printed.err == ""
