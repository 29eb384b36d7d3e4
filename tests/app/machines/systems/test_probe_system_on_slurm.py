"""Probing a real Slurm: its nodes, GPUs, prices and limits, what changed, and what it hides."""

import json
import os
import time
from datetime import date

import pytest

from leadline.app.composition import toolbox
from leadline.app.jobs.journal import open_journal
from leadline.app.machines.systems import probe_system
from leadline.catalog.read import TomlCatalog
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import Attempt, Job, Place, Policy
from leadline.core.units import HOUR_S, MIB
from leadline.execution.processes import run_process
from leadline.interfaces.cli.main import main
from leadline.recommendation.queued_jobs import explain_unrunnable

GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 512, "vocab_size": 8000}
NAMES = ["short-cpu", "short-l40s", "long-cpu", "long-l40s", "gpu"]
WEIGHED = "the most of 1 a core, 0.25 a GiB, 15 a GPU (test billing units)"


@pytest.fixture
def here(gpu_cluster, tmp_path, monkeypatch):
    """Reach the cluster, with a data folder of its own."""
    for name, value in gpu_cluster.cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    toolbox.cache_clear()
    yield tmp_path
    toolbox.cache_clear()


@pytest.fixture
def probe(here):
    folder = here / "data" / "catalog"

    def ask(run=run_process):
        return probe_system(None, run=run, catalog=TomlCatalog(folder), folder=folder, today=date(2026, 3, 2))

    return ask


def run(capsys, *words, code=0):
    assert code == main(list(words))
    return capsys.readouterr()


def as_nobody(argv, **options):
    """Run a command as a user without any right, whom the accounting does not know."""
    return run_process(["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *argv], **options)


def test_the_cluster_is_read_as_it_is_configured(probe, here):
    found = probe()
    assert [partition.name for partition in found.system.partitions] == NAMES
    cpu, *_, gpu = found.system.partitions
    assert (cpu.node.count, cpu.node.cores, cpu.node.memory_bytes, cpu.node.device) == (1, 4, 64000 * MIB, None)
    assert (gpu.node.count, gpu.node.device, gpu.node.gpus) == (1, "L40S", 2)
    assert (cpu.limits.max_walltime_s, gpu.limits.max_walltime_s) == (HOUR_S, 2 * HOUR_S)
    assert gpu.default_memory_bytes_per_core == 1000 * MIB
    assert gpu.billing.price_text() == WEIGHED
    setting = found.system.scheduling
    assert (
        setting.version[:5], setting.rejects_beyond_limits, setting.max_array_size, setting.sampling_interval_s,
    ) == ("22.05", True, 1001, 1.0)  # fmt: skip
    assert not [note for note in found.notes if "doubtful" in note], "Slurm's own billing of each partition is ours"
    assert [found.system] == [
        system for system in TomlCatalog(here / "data" / "catalog").systems() if system.name == "test"
    ]


def test_the_command_line_shows_and_recommends_a_probed_system(here, capsys):
    shown = run(capsys, "systems", "probe")
    assert "2 × L40S" in shown.out
    assert f"written to {here}/data/catalog/sites/test.toml" in shown.err
    assert "2 × L40S" in run(capsys, "systems", "show", "test").out
    run(capsys, "systems", "validate")
    (here / "config.json").write_text(json.dumps(GPT2))
    toolbox.cache_clear()
    asked = ["recommend", str(here / "config.json"), "--batch", "8", "--steps", "2000", "--on", "test:gpu", "--json"]
    (option, *_) = json.loads(run(capsys, *asked).out)["options"]
    assert (option["system"], option["partition"]) == ("test", "gpu")
    assert option["estimate"]["currency"] == "test billing units"


def test_changes_of_a_cluster_are_reported_as_text_and_as_json(gpu_cluster, here, capsys):
    run(capsys, "systems", "probe")
    gpu_cluster.say("scontrol", "update", "PartitionName=gpu", "MaxTime=30", "TRESBillingWeights=CPU=2.0,GRES/gpu=15.0")
    gpu_cluster.say("scontrol", "create", "PartitionName=new", "Nodes=ALL", "MaxTime=10")
    try:
        toolbox.cache_clear()
        document = json.loads(run(capsys, "systems", "probe", "--json").out)
    finally:
        gpu_cluster.say("scontrol", "delete", "PartitionName=new")
        gpu_cluster.say("scontrol", "update", "PartitionName=gpu", "MaxTime=120",
                        "TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=15.0")  # fmt: skip
    assert (document["schema"], document["first"]) == ("leadline.system_probe/1", False)
    assert [
        "partition new is new",
        "gpu: the limit of walltime was 2h 00m, and is 30m 00s",
        f"gpu: the price was {WEIGHED}, and is the most of 2 a core, 15 a GPU (test billing units)",
    ] == [change["sentence"] for change in document["changes"]]
    assert document["kept"].endswith("test.toml.bak")


def test_a_lowered_limit_names_the_queued_jobs_that_it_breaks(gpu_cluster, probe):
    probe()
    gpu_cluster.say("scontrol", "update", "PartitionName=gpu", "MaxTime=30")
    try:
        change = probe().change
    finally:
        gpu_cluster.say("scontrol", "update", "PartitionName=gpu", "MaxTime=120")
    queued = [
        JobSpec(name, ("true",), ResourceSpec(gpus_per_node=1, walltime_s=walltime_s), "test", partition)
        for name, partition, walltime_s in (
            ("long", "gpu", HOUR_S),
            ("brief", "gpu", 600.0),
            ("other", "short", HOUR_S),
        )
    ]
    assert [explain_unrunnable(change, job) for job in queued] == [
        "long cannot run in gpu any more: walltime: asks for 1h 00m, the limit is 30m 00s",
        None,
        None,
    ]


def test_jobs_that_a_change_broke_are_named_and_logged(gpu_cluster, here, capsys):
    run(capsys, "systems", "probe")
    place, asked = Place("test", "gpu"), ResourceSpec(gpus_per_node=1, walltime_s=float(HOUR_S))
    waiting = Attempt("w-1", "w", 1, place, asked, scheduler_id="1000")
    with open_journal() as journal:
        journal.add([Job("w", JobSpec("long", ("true",), asked), Policy((place,)), attempts=(waiting,))])
        journal.write(attempts=[waiting])
    gpu_cluster.say("scontrol", "update", "PartitionName=gpu", "MaxTime=30")
    try:
        printed = run(capsys, "systems", "probe")
        again = run(capsys, "systems", "probe")
    finally:
        gpu_cluster.say("scontrol", "update", "PartitionName=gpu", "MaxTime=120")
    why = "long cannot run in gpu any more: walltime: asks for 1h 00m, the limit is 30m 00s"
    assert f"broken: job w: {why}" in printed.err
    assert "broken" not in again.err
    assert f"test changed: {why}" in run(capsys, "explain", "w").out


LIMITED = ("research", "root", "set", "MaxWall=00:20:00", "GrpTRES=gres/gpu=1", "qos=normal,long")
FREED = ("research", "root", "set", "MaxWall=-1", "GrpTRES=gres/gpu=-1", "qos=normal")


def test_limits_of_qos_and_accounts_are_those_that_slurm_enforces(gpu_cluster, probe):
    """What the probe says of the longest job is held against what Slurm starts."""
    change = ("sacctmgr", "-i", "-Q")
    gpu_cluster.say(*change, "add", "qos", "long", "MaxWall=3:00:00", "Flags=PartitionTimeLimit", "UsageFactor=2")
    gpu_cluster.say(*change, "modify", "account", *LIMITED)
    try:
        gpu, long = (probe().system.partition(name) for name in ("gpu", "gpu-long"))
        assert (gpu.limits.max_walltime_s, gpu.limits.max_gpus) == (1200.0, 1)
        assert (
            long.limits.max_walltime_s, long.queue, long.rules.qos, long.billing.charge_factor,
        ) == (3 * HOUR_S, "gpu", "long", 2.0)  # fmt: skip
        for qos, most in (("normal", 20), ("long", 180)):
            ask = ("-p", "gpu", "-q", qos, "-t")
            assert tuple(_starts(gpu_cluster, *ask, str(minutes)) for minutes in (most, most + 1)) == (True, False), qos
    finally:
        gpu_cluster.say(*change, "modify", "account", *FREED)
        gpu_cluster.say(*change, "delete", "qos", "long")


def _starts(cluster, *asked):
    """Whether Slurm starts a job, rather than refusing it or letting it pend for a limit."""
    done = run_process(
        ["sbatch", "--parsable", "-o", "/dev/null", *asked, "--wrap", "true"], env=cluster.cluster.environment
    )
    if done.returncode != 0:
        return False
    job, deadline = done.stdout.strip(), time.monotonic() + 60
    while True:
        said = cluster.say("scontrol", "-o", "show", "job", job)
        if "JobState=PENDING" not in said:
            return True
        if "Limit " in said.partition(" Reason=")[2][:60]:
            cluster.say("scancel", job)
            return False
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may act as another user")
def test_a_user_whom_the_cluster_hides_its_nodes_from_gets_what_is_left(gpu_cluster, probe, monkeypatch):
    probe()
    monkeypatch.setenv("LOGNAME", "nobody")
    gpu_cluster.configure(lambda text: f"{text}PrivateData=nodes\n")
    try:
        found = probe(as_nobody)
    finally:
        gpu_cluster.configure(lambda text: text.replace("PrivateData=nodes\n", ""))
    assert [partition.name for partition in found.system.partitions] == ["short", "long", "gpu"]
    gpu = found.system.partition("gpu")
    assert (gpu.limits.max_walltime_s, gpu.node.cores) == (2 * HOUR_S, None)
    assert any("show node failed" in note for note in found.notes)
    assert any("you have no account" in note for note in found.notes)
    request = JobSpec("a", ("true",), ResourceSpec(gpus_per_node=2), "test", "short-l40s")
    assert explain_unrunnable(found.change, request) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root may act as another user")
def test_a_partition_of_other_groups_is_restricted(gpu_cluster, probe):
    gpu_cluster.say("scontrol", "update", "PartitionName=gpu", "AllowGroups=nogroup")
    try:
        assert probe().system.partition("gpu").restricted
    finally:
        gpu_cluster.say("scontrol", "update", "PartitionName=gpu", "AllowGroups=ALL")


def test_a_controller_that_is_down_is_reported_and_keeps_the_file(gpu_cluster, here, capsys):
    run(capsys, "systems", "probe")
    file = here / "data" / "catalog" / "sites" / "test.toml"
    written = file.read_text()
    with gpu_cluster.without("slurmctld"):
        said = run(capsys, "systems", "probe", code=4).err
    assert said.startswith("leadline systems: Slurm does not answer (")
    assert (1, written) == (said.count("\n"), file.read_text())


def test_a_machine_without_slurm_is_reported(here, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    said = run(capsys, "systems", "probe", code=4).err
    assert said.startswith("leadline systems: no Slurm on this machine")


def test_an_accounting_that_is_down_leaves_its_limits_unknown(gpu_cluster, probe):
    with gpu_cluster.without("slurmdbd"):
        found = probe()
    assert [partition.name for partition in found.system.partitions] == NAMES
    assert any("QOS unknown: sacctmgr failed" in note for note in found.notes)
    assert found.system.scheduling.accounting_answered is False
    again = probe()
    assert again.system.scheduling.accounting_answered is True
    assert again.change.changes == (), "limits that were not known did not change"
