"""A word that is too long for a file name ends in one sentence that shows an excerpt of it, whatever it stands for."""

import errno
import json
import os
import sys

import pytest

import leadline
from leadline.app.composition import toolbox
from leadline.interfaces.cli import main as entry
from leadline.interfaces.cli.main import main

LONG = "w" * 300
NUL = "a\0b"
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "runs.csv").write_text("epochs,elapsed_s\n" + "".join(f"{n},{2 * n}\n" for n in range(1, 20)))
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    toolbox.cache_clear()
    yield tmp_path
    toolbox.cache_clear()


@pytest.mark.parametrize(
    "words",
    [
        ["estimate", LONG], ["estimate", f"{LONG}.json"], ["estimate", f"{LONG}.toml"],
        ["estimate", f"{LONG}.py:build"],
        ["estimate", "--", "python3", LONG], ["estimate", "--", "python3", f"{LONG}.py"], ["estimate", "--", LONG, "x"],
        ["estimate", "--", f"{LONG}.py", "x"], ["estimate", "--", "torchrun", LONG],
        ["estimate", "config.json", "--on", LONG], ["estimate", "config.json", "--lengths", LONG],
        ["fit", LONG], ["recommend", LONG], ["recommend", "--model", LONG], ["probe", "--", LONG],
        ["submit", f"{LONG}.toml"], ["submit", "--dry-run", "--on", LONG, "--", "true"],
        ["campaign", "run", LONG], ["campaign", "status", LONG], ["campaign", "status", f"{LONG}.toml"],
        ["jobs", LONG], ["logs", LONG], ["history", "show", LONG], ["history", "list", LONG],
        ["train", LONG], ["train", f"{LONG}.csv"], ["train", f"{LONG}.jsonl"], ["train", "runs.csv", "--to", LONG],
        ["model", "show", LONG], ["model", "show", f"{LONG}.npz"],
        ["systems", "show", LONG], ["systems", "validate", LONG], ["systems", "check", LONG],
        ["devices", "show", LONG], ["measure", "--out", LONG], ["measure", "--out", f"{LONG}/rows.jsonl"],
        ["adapt", LONG], ["adapt", f"{LONG}.jsonl"],
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)  # fmt: skip
def test_a_word_too_long_for_a_file_name_ends_in_one_short_sentence(capfd, words):
    assert main(words) in (1, 2)
    *_, sentence = capfd.readouterr().err.splitlines()
    assert sentence.startswith(f"leadline {words[0]}: ")
    assert LONG not in sentence
    assert "…w" in sentence


@pytest.mark.parametrize("program", [LONG, f"./{LONG}"])
def test_a_dry_run_of_a_long_program_shows_it_as_an_excerpt_in_its_notes(capsys, program):
    assert main(["submit", "--dry-run", "--", program]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "is not a Python command" in line]
    assert len(notes) == 1
    assert LONG not in notes[0]


@pytest.mark.parametrize(
    "ask",
    [
        leadline.estimate,
        lambda word: leadline.estimate(f"{word}.json"),
        lambda word: leadline.estimate(f"{word}.toml"),
        lambda word: leadline.estimate(f"{word}.py:build"),
        lambda word: leadline.estimate([sys.executable, word]),
        lambda word: leadline.estimate([word, "x"]),
        lambda word: leadline.fit(word, on="A100 SXM4 80GB"),
        leadline.recommend,
        leadline.train,
        lambda word: leadline.train(f"{word}.csv"),
    ],
)
@pytest.mark.parametrize("word", [LONG, NUL], ids=["long", "NUL"])
def test_the_python_api_refuses_a_word_that_can_be_no_path(ask, word):
    with pytest.raises(leadline.LeadlineError) as raised:
        ask(word)
    assert word not in str(raised.value)


def test_a_long_data_folder_is_named_with_the_variable(capsys, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", f"/tmp/{LONG}")  # noqa: S108 - it is never made
    assert main(["jobs"]) == 1
    assert "w…w" in (sentence := capsys.readouterr().err)
    assert "set LEADLINE_DATA_DIR to another folder" in sentence


def test_an_unexpected_error_shows_an_excerpt_of_a_long_file_name(capsys, monkeypatch):
    def fail(_):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), LONG)

    monkeypatch.setattr(entry, "main", fail)
    with pytest.raises(SystemExit) as ended:
        entry.run()
    assert ended.value.code == 1
    sentence = capsys.readouterr().err
    assert sentence.startswith("leadline: cannot use www")
    assert LONG not in sentence
