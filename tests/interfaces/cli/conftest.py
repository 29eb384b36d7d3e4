"""Every test of the command line has a data folder of its own."""

import pytest

from leadline.app.composition import toolbox


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    toolbox.cache_clear()
    yield
    toolbox.cache_clear()
