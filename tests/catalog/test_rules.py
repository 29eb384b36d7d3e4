"""Every partition that runs Slurm gets a script, and no script holds an option its site rejects."""

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.execution.schedulers.slurm.script import directives

PLACES = [
    pytest.param(system, partition, id=f"{system.name}:{partition.name}")
    for system in TomlCatalog().systems()
    if system.scheduler == "slurm"
    for partition in system.partitions
]


@pytest.mark.parametrize(("system", "partition"), PLACES)
def test_a_script_uses_no_rejected_option(system, partition):
    nodes = partition.limits.min_nodes or 1
    gpus = 1 if partition.node.device else 0
    resources = ResourceSpec(
        nodes=nodes, cores_per_task=partition.limits.min_cores, gpus_per_node=gpus, memory_bytes_per_node=2**30,
        walltime_s=600.0,
    )  # fmt: skip
    spec = JobSpec("job", ("python", "train.py"), resources, system.name, partition.name, account="abc")
    options = directives(spec, partition)
    assert not set(partition.rules.rejects) & set(options)
    assert set(partition.rules.requires) <= set(options)


def test_tacc_assigns_gpus_by_partition():
    assert TomlCatalog().system("Lonestar6").partition("gpu-a100").rules.gpu_option is None
