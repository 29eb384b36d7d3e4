"""Systems find their partitions as people name them."""

import pytest

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.systems import NodeType, Partition, System

NODE = NodeType("n")
PSC = System(
    "Bridges-2", "PSC", "hpc", "production", "slurm",
    partitions=(Partition("GPU-v100", NODE, queue="GPU"), Partition("GPU-h100", NODE, queue="GPU"),
                Partition("RM", NODE), Partition("local", NODE, queue="remote")),
)  # fmt: skip


def test_a_partition_is_found_by_its_name_whatever_its_case():
    assert PSC.partitions[2] is PSC.partition("rm")


def test_a_partition_is_found_by_its_queue_where_that_is_unique():
    assert PSC.partitions[3] is PSC.partition("remote")


def test_a_queue_of_several_node_types_is_refused_with_the_names_to_choose_from():
    with pytest.raises(InvalidInput, match="GPU-v100, GPU-h100"):
        PSC.partition("GPU")


def test_an_unknown_partition_names_the_closest():
    with pytest.raises(UnknownName, match="'GPU-h100'"):
        PSC.partition("GPU-h10")
