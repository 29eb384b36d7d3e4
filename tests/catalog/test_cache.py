"""The cache of the parsed catalog gives the same nouns, and is never trusted blindly."""

from pathlib import Path

import msgspec
import pytest

from leadline.catalog import read as reader
from leadline.catalog.read import TomlCatalog


@pytest.fixture
def catalog(tmp_path):
    return lambda: TomlCatalog(None, tmp_path / "cache")


def test_a_cached_catalog_equals_the_parsed_one_to_the_last_bit(catalog, tmp_path, monkeypatch):
    parsed = TomlCatalog()
    for _ in range(2):
        assert [repr(device) for device in catalog().devices()] == [repr(device) for device in parsed.devices()]
        assert [repr(system) for system in catalog().systems()] == [repr(system) for system in parsed.systems()]
        # The second time nothing may be parsed.
        monkeypatch.setattr(reader, "_parse", None)
    assert sorted(file.name for file in (tmp_path / "cache").iterdir()) == ["devices.msgpack", "systems.msgpack"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _content: b"",
        lambda content: content[:-1],
        lambda content: content[:100] + b"\x00" + content[101:],
        lambda content: content.replace(b"H100", b"H900"),
        lambda content: bytes(32) + content[32:],
        lambda content: content[:32] + reader._digest(msgspec.msgpack.encode([1])) + msgspec.msgpack.encode([1]),
    ],
)
def test_a_broken_or_stale_cache_is_replaced(damage, catalog, tmp_path):
    catalog().devices()
    file = tmp_path / "cache" / "devices.msgpack"
    good = file.read_bytes()
    file.write_bytes(damage(good))
    assert catalog().devices() == TomlCatalog().devices()
    assert file.read_bytes() == good


def test_other_bytes_or_other_code_make_the_cache_stale(tmp_path, monkeypatch):
    def read(content):
        return reader._read_cached([("a.toml", content)], str, tmp_path / "words", lambda text, _name: text.split())

    assert read(b"one") == ["one"]
    assert read(b"two") == ["two"]
    monkeypatch.setattr(reader, "_key", lambda _sources: bytes(32))
    assert read(b"three") == ["three"]
    assert read(b"four") == ["three"]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert TomlCatalog(None, tmp_path / "file" / "cache").devices() == TomlCatalog().devices()


def test_the_files_of_code_in_the_key_exist():
    package = Path(reader.__file__).parents[1]
    assert [name for name in reader.CODE if not (package / name).is_file()] == []
