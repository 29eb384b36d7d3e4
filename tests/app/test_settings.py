"""The folders Leadline writes to."""

from pathlib import Path

from leadline.app import settings


def test_everything_lives_under_the_folder_the_variable_names(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path))
    assert settings.data_dir() == tmp_path
    assert settings.catalog_dir() == tmp_path / "catalog"
    assert settings.history_path() == tmp_path / "history.sqlite"
    assert settings.runs_dir() == tmp_path / "runs"


def test_a_relative_folder_becomes_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEADLINE_DATA_DIR", "mine")
    assert settings.data_dir() == tmp_path / "mine"


def test_without_the_variable_the_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", " ")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert settings.data_dir() == tmp_path / "leadline"


def test_asking_for_a_folder_makes_none(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "none"))
    settings.history_path()
    assert not Path(tmp_path / "none").exists()
