"""Narrow terminals lose no number, and long work shows on stderr that it goes on."""

import json
import re
import time

import pytest

from leadline.interfaces.cli import output
from leadline.interfaces.cli.main import main
from leadline.interfaces.cli.output import status

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip
PLACES = ("--on", "Perlmutter", "--on", "AWS us-east-1", "--on", "Pitzer", "--on", "A100 SXM4 80GB")


@pytest.mark.parametrize("verb", ["estimate", "recommend"])
@pytest.mark.parametrize("width", [80, 60])
def test_a_narrow_terminal_shows_every_number(verb, width, tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    places = PLACES if verb == "estimate" else PLACES[:6]
    words = [verb, str(tmp_path / "config.json"), "--steps", "1000", *places]
    numbers = {}
    for columns in (400, width):
        monkeypatch.setattr(output, "table_width", lambda columns=columns: columns)
        assert main(words) == 0
        # Words may break within a name such as regular-gpu80; figures stand apart.
        numbers[columns] = sorted(
            re.findall(r"(?<![\w.-])[\d.]+ (?:[mµ]?s|[KMG]iB|m|h)\b|\$[\d.]+", capsys.readouterr().out)
        )
    assert numbers[400]
    assert numbers[width] == numbers[400]


def test_short_work_shows_nothing(capsys):
    with status("tracing"):
        pass
    assert capsys.readouterr().err == ""


def test_long_work_shows_a_plain_line_on_stderr_and_again_if_it_changes(monkeypatch, capsys):
    monkeypatch.setattr(output, "STATUS_AFTER_S", 0.01)
    monkeypatch.setattr(output, "STATUS_EVERY_S", 0.01)
    with status("tracing") as update:
        wait_for(capsys, "tracing …\n")
        update("estimating")
        wait_for(capsys, "estimating …\n")
    with status("tracing", quiet=True):
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_one_line_that_goes_when_the_work_is_done(monkeypatch, capsys):
    monkeypatch.setattr(output, "STATUS_AFTER_S", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with status("tracing"):
        wait_for(capsys, "\r\x1b[2Ktracing … ")
    assert capsys.readouterr().err.endswith("\r\x1b[2K")


def test_an_error_ends_the_status(monkeypatch, capsys):
    monkeypatch.setattr(output, "STATUS_AFTER_S", 0.01)
    with pytest.raises(KeyError), status("tracing"):
        raise KeyError
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def wait_for(capsys, text):
    written = ""
    for _ in range(500):
        written += capsys.readouterr().err
        if written.startswith(text):
            return
        time.sleep(0.01)
    raise AssertionError(written)
