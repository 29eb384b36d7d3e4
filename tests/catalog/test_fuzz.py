"""Mutated files of devices and sites are read, or refused in one clear message."""

import random
import tomllib
from datetime import date
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.app.machines.systems import check_catalog
from leadline.catalog.read import TomlCatalog
from leadline.catalog.toml_files import SiteFile, merge_tables, read_devices, read_site
from leadline.catalog.validate import validate_catalog
from leadline.core.documents import convert_toml
from leadline.core.errors import InvalidInput

DATA = files("leadline.catalog") / "data"
SITE = (DATA / "sites" / "csc.toml").read_text()
DEVICES = "\n\n[[devices]]".join((DATA / "devices.toml").read_text().split("\n[[devices]]")[20:26])
DEVICES = f"[[devices]]{DEVICES.split('[[devices]]', 1)[-1]}"
CATALOG, TODAY = TomlCatalog(), date(2026, 11, 21)
MADNESS = (
    "", "[", "]", "{", "}", "=", '"', "''", "\n", "#", ",", ".", "inf", "nan", "-1", "0", "9" * 400, "1e999", "true",
    "[]", "{}", "2026-01-01", "\x00", "\u2028", "é", "[[systems]]\n", "[[devices]]\n", "name = 1\n", "a.b.c = 1\n",
    "0x", "1_0",
)  # fmt: skip
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6,
)  # fmt: skip


def mutate(text, seed):
    chance = random.Random(seed)  # noqa: S311 - mutations that a seed repeats
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(text)), chance.choice((0, 1, 3, 20, 200))
        text = text[:at] + chance.choice(MADNESS) + text[at + length :]
    return text


def refusal(read, *arguments, **options):
    """Return what reads, and the message where it is refused."""
    try:
        return read(*arguments, **options), ""
    except InvalidInput as refused:
        return None, str(refused)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("text", "read"), [(SITE, read_site), (DEVICES, read_devices)], ids=["site", "devices"])
def test_a_mutated_file_is_read_or_refused_in_one_message(text, read, seed):
    for number in range(25):
        nouns, message = refusal(read, mutate(text, 1000 * seed + number), "mutated.toml")
        assert nouns is not None or (message.startswith("mutated.toml") and len(message) < 8000)
        validate_catalog(nouns or [] if read is read_devices else [], nouns or [] if read is read_site else [], TODAY)


def places(value, path=()):
    """Return the path of every value in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


@given(st.sampled_from(places(tomllib.loads(SITE))[1:]), VALUES)
def test_any_value_in_place_of_another_is_read_or_refused(path, value):
    document = table = tomllib.loads(SITE)
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    merged = merge_tables(tomllib.loads(SITE), document)
    site, message = refusal(convert_toml, merged, SiteFile, text=SITE, label="mutated.toml", finite=True)
    assert site is not None or message.startswith("mutated.toml")


@pytest.mark.parametrize("seed", range(10))
def test_mutated_additions_are_merged_or_refused(seed):
    additions = 'site = "CSC"\n[[systems]]\nname = "LUMI"\npartitions = [{ name = "standard-g", max_nodes = 3 }]\n'
    for number in range(20):
        mutated = mutate(additions, 1000 * seed + number)
        nouns, message = refusal(read_site, SITE, "site.toml", additions=(mutated, "additions.toml"))
        assert nouns is not None or "additions.toml" in message


@pytest.mark.parametrize("seed", range(10))
def test_validate_refuses_or_lists_the_faults_of_a_mutated_file(tmp_path, seed):
    file = tmp_path / "mutated.toml"
    for number in range(8):
        file.write_text(mutate(SITE, 5000 * seed + number), encoding="utf-8")
        findings, message = refusal(check_catalog, CATALOG, file)
        assert findings is not None or str(file) in message
        assert all(finding.problem and finding.fix for finding in findings or ())
