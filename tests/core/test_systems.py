"""Lookup of partitions by name."""

import pytest

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.systems import NodeType, Partition, System

NODE = NodeType("n")
PSC = System(
    "Bridges-2", "PSC", "hpc", "production", "slurm",
    partitions=(Partition("GPU-v100", NODE, queue="GPU"), Partition("GPU-h100", NODE, queue="GPU"),
                Partition("RM", NODE), Partition("local", NODE, queue="remote")),
)  # fmt: skip


def test_a_partition_name_ignores_case():
    assert PSC.partition("rm") is PSC.partitions[2]


def test_a_unique_queue_name_finds_its_partition():
    assert PSC.partition("remote") is PSC.partitions[3]


def test_a_queue_of_several_node_types_is_refused_with_their_names():
    with pytest.raises(InvalidInput, match="GPU-v100, GPU-h100"):
        PSC.partition("GPU")


def test_an_unknown_partition_suggests_the_closest():
    with pytest.raises(UnknownName, match="'GPU-h100'"):
        PSC.partition("GPU-h10")
