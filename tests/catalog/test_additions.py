"""What a user writes of a site is laid over the file that a probe wrote, and outlives it."""

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.catalog.toml_files import merge_tables
from leadline.core.errors import InvalidInput

PROBED = """
site = "Reef"
name = "Reef"
[[systems]]
name = "Reef"
kind = "cluster"
status = "production"
scheduler = "slurm"
confidence = "found"
source = "scontrol"
partitions = [{ name = "batch", node = "thin" }, { name = "gpu", node = "fat" }]
[systems.nodes.thin]
cores = 48
[systems.nodes.fat]
cores = 28
gpus = 4
"""
OWN = """
site = "Our reef"
[[systems]]
name = "Reef"
partitions = [{ name = "gpu", billing = "dollars", rules = "ours" }, { name = "ours", node = "thin" }]
[systems.nodes.thin]
processor = "AMD EPYC 7763"
[systems.nodes.fat]
device = "A100 SXM4 80GB"
[systems.billing.dollars]
rule = "gpu-hours"
currency = "USD"
gpu_hour = 1.5
[systems.rules.ours]
requires = ["--account"]
gpu_option = "--gres=gpu:{gpus}"
"""


@pytest.fixture
def catalog(tmp_path):
    def made(additions):
        for folder, text in (("sites", PROBED), ("additions", additions)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / "reef.toml").write_text(text)
        return TomlCatalog(tmp_path)

    return made


def test_additions_extend_and_override_the_file(catalog):
    reef = catalog(OWN).system("Reef")
    batch, gpu, ours = reef.partitions
    assert (reef.site, batch.node.cores, batch.node.processor) == ("Our reef", 48, "AMD EPYC 7763")
    assert (gpu.node.cores, gpu.node.gpus, gpu.node.device) == (28, 4, "A100 SXM4 80GB")
    assert (gpu.billing.gpu_hour, gpu.rules.requires) == (1.5, ("--account",))
    assert (ours.name, ours.node.cores) == ("ours", 48)


def test_additions_to_a_removed_partition_are_ignored(catalog):
    reef = catalog(OWN.replace('name = "gpu", billing', 'name = "old", billing')).system("Reef")
    assert [one.name for one in reef.partitions] == ["batch", "gpu", "ours"]


def test_an_error_in_the_additions_is_reported_with_its_line(catalog):
    with pytest.raises(InvalidInput, match=r"additions/reef.toml: line 7: there is no key 'procesor'"):
        catalog(OWN.replace("processor", "procesor")).systems()


def test_additions_without_a_matching_file_are_ignored(tmp_path):
    (tmp_path / "additions").mkdir()
    (tmp_path / "additions" / "reef.toml").write_text(OWN)
    assert "Reef" not in [one.name for one in TomlCatalog(tmp_path).systems()]


def test_lists_without_names_are_replaced():
    assert merge_tables({"a": [1, 2], "b": 1}, {"a": [3]}) == {"a": [3], "b": 1}
