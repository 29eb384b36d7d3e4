"""A catalog that follows the files of the user's folder."""

import pytest

from leadline.app import settings
from leadline.app.composition import live_catalog
from leadline.app.machines.targets import lookup_partition
from leadline.catalog.read import LiveCatalog
from leadline.core.errors import InvalidInput, UnknownName

SITE = """\
site = "LAB"
name = "Our laboratory"

[[systems]]
name = "Bench"
kind = "cluster"
status = "production"
scheduler = "slurm"
confidence = "found"
source = "https://example.org/bench"
as_of = "2026-03"
partitions = [{{ name = "gpu", node = "thin", max_walltime_h = {hours}, max_nodes = 4 }}]

[systems.nodes.thin]
count = 20
processor = "AMD EPYC 7763"
sockets = 2
cores = 128
memory_gib = 256
"""


@pytest.fixture
def world(tmp_path):
    """Yield the site file, its catalog, the clock of its looks, and what it reported."""
    (tmp_path / "sites").mkdir()
    site, now, messages = tmp_path / "sites" / "lab.toml", [0.0], []
    site.write_text(SITE.format(hours=48))
    return site, LiveCatalog(tmp_path, report=messages.append, clock=lambda: now[0]), now, messages


def hours(catalog):
    return lookup_partition("Bench", "gpu", catalog).limits.max_walltime_s / 3600


def test_a_changed_file_counts_from_the_next_look(world):
    site, catalog, now, messages = world
    assert hours(catalog) == 48
    site.write_text(SITE.format(hours=2))
    assert hours(catalog) == 48
    now[0] += 1.0
    assert hours(catalog) == 2
    site.unlink()
    now[0] += 1.0
    with pytest.raises(UnknownName):
        catalog.system("Bench")
    assert messages == []


def test_a_broken_file_is_reported_once_and_the_last_catalog_stays(world):
    site, catalog, now, messages = world
    for text in ("site = [", "site = [", SITE.format(hours='"x"')):
        site.write_text(text)
        for _ in range(3):
            now[0] += 1.0
            assert hours(catalog) == 48
    assert len(messages) == 2
    assert str(site) in messages[0]
    site.write_text(SITE.format(hours=12))
    now[0] += 1.0
    assert hours(catalog) == 12


def test_a_file_that_is_broken_at_first_is_an_error(tmp_path):
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "lab.toml").write_text("site = [")
    with pytest.raises(InvalidInput, match=r"lab\.toml"):
        LiveCatalog(tmp_path)


def test_the_plane_reads_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path))
    folder = settings.catalog_dir() / "sites"
    folder.mkdir(parents=True)
    (folder / "lab.toml").write_text(SITE.format(hours=48))
    assert hours(live_catalog(print)) == 48
