"""Probing a Slurm of scripted answers: what is written, kept, refused and left unknown."""

from datetime import date

import pytest
import slurm_outputs as outputs

from leadline.app.machines.systems import COMMAND_S, last_change, probe_system
from leadline.app.machines.targets import resolve_targets
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.processes import CompletedProcess
from leadline.core.workload import ModelKind, ModelSource, Workload

DAY = date(2026, 3, 2)
DENIED = CompletedProcess(1, "", "slurm_load_node error: Access/permission denied\n")
DOWN = CompletedProcess(1, "", "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\n")
ASKED = {
    "scontrol show config": outputs.config("20.11.8"),
    "scontrol -a -o show partition": outputs.V20_11_PARTITIONS,
    "scontrol -a -o show node": outputs.V20_11_NODES,
    "sacctmgr -n -P show qos": outputs.QOS,
    "sacctmgr -n -P show assoc": outputs.ASSOCIATIONS,
    "nvidia-smi": InvalidInput("there is no such program"),
}


class Answering:
    """A ``ProcessRunner`` that gives the answer of the first key that the words begin with."""

    def __init__(self, **changes):
        self.answers = {**ASKED, **{key.replace("_", " "): value for key, value in changes.items()}}
        self.asked = []

    def __call__(self, argv, *, timeout_s=None):
        words = " ".join(argv)
        self.asked.append(words)
        assert timeout_s is not None, "a command that hangs would hang the probe"
        for key, answer in self.answers.items():
            if words.startswith(key):
                if isinstance(answer, Exception):
                    raise answer
                return CompletedProcess(0, answer, "") if isinstance(answer, str) else answer
        return CompletedProcess(1, "", f"{argv[0]}: not scripted")


@pytest.fixture
def probe(tmp_path):
    def ask(name=None, *, save=True, **changes):
        return probe_system(
            name, run=Answering(**changes), catalog=TomlCatalog(tmp_path), folder=tmp_path, today=DAY, save=save
        )

    return ask


def test_a_probed_system_is_in_the_catalog_at_once(probe, tmp_path):
    found = probe()
    assert (found.system, "reef") == (TomlCatalog(tmp_path).system("REEF"), found.system.name)
    assert (str(tmp_path / "sites" / "reef.toml"), None) == (found.file, found.kept)
    assert [partition.name for partition in found.system.partitions] == ["batch", "batch-free", "gpu", "gpu-free"]
    assert (found.change.before, found.change.changes) == (None, ())


def test_nothing_is_asked_for_as_json_or_in_a_format_that_cuts(tmp_path):
    run = Answering(**{"scontrol -a -o show node": DENIED})
    probe_system(None, run=run, catalog=TomlCatalog(tmp_path), folder=tmp_path, today=DAY)
    assert any(words.startswith("sinfo -h -a -e -o %R|") for words in run.asked)
    assert not any("json" in words or "%." in words or "--Format" in words for words in run.asked)


def test_it_gets_the_name_that_the_user_gives_it(probe, tmp_path):
    found = probe("Our Reef/2")
    assert TomlCatalog(tmp_path).system("our reef/2").name == "Our Reef/2"
    assert str(tmp_path / "sites" / "Our-Reef-2.toml") == found.file


def test_a_probed_cluster_replaces_the_shipped_entry(probe, tmp_path):
    found = probe(**{"scontrol show config": outputs.config("20.11.8", cluster="pitzer")})
    catalog = TomlCatalog(tmp_path)
    assert found.system == catalog.system("osc-pitzer")
    assert [system.name for system in catalog.systems() if system.name.casefold() == "pitzer"] == ["Pitzer"]
    assert any("Pitzer replaces the shipped entry of OSC" in note for note in found.notes)


def test_a_name_of_the_same_file_does_not_write_over_another_system(probe):
    probe("reef/one")
    with pytest.raises(InvalidInput, match="holds another probed system"):
        probe("reef one")


def test_a_dry_run_writes_nothing(probe, tmp_path):
    found = probe(save=False)
    assert list(tmp_path.iterdir()) == []
    assert "[[systems]]" in found.text


def test_a_second_probe_reports_changes_and_keeps_the_previous_file(probe, tmp_path):
    first = (tmp_path / "sites" / "reef.toml", probe())[0].read_text()
    shorter = outputs.V20_11_PARTITIONS.replace("MaxTime=2-00:00:00", "MaxTime=12:00:00")
    found = probe(**{"scontrol -a -o show partition": shorter})
    (change,) = found.change.changes
    assert change.sentence == "batch: the limit of walltime was 2d 00h, and is 12h 00m"
    assert (
        change.kind, change.place, change.field, change.before, change.after,
    ) == ("limit", "batch", "max_walltime_s", 172800.0, 43200.0)  # fmt: skip
    kept = tmp_path / "sites" / "reef.toml.bak"
    assert (str(kept), first) == (found.kept, kept.read_text())
    assert last_change("Reef", tmp_path).changes == found.change.changes
    assert last_change("Pitzer", tmp_path) is None


def test_a_probe_that_finds_nothing_new_keeps_no_copy(probe, tmp_path):
    probe()
    assert ((found := probe()).change.changes, found.kept) == ((), None)
    assert [one.name for one in (tmp_path / "sites").iterdir()] == ["reef.toml"]


def test_additions_survive_every_probe(probe, tmp_path):
    probe()
    (tmp_path / "additions").mkdir()
    own = '[[systems]]\nname = "reef"\n[systems.nodes.48c-186g]\nprocessor = "AMD EPYC 7763"\n'
    (tmp_path / "additions" / "reef.toml").write_text(own)
    asked = {"partition": outputs.V20_11_PARTITIONS, "node": outputs.V20_11_NODES}
    found = probe(**{f"scontrol -a -o show {key}": said.replace("=batch", "=main") for key, said in asked.items()})
    assert found.system.partition("main").node.processor == "AMD EPYC 7763"
    assert own == (tmp_path / "additions" / "reef.toml").read_text()
    assert [change.sentence for change in found.change.changes] == ["partition batch is gone", "partition main is new"]


def test_additions_to_missing_entries_are_reported(probe, tmp_path):
    (tmp_path / "additions").mkdir()
    own = '[[systems]]\nname = "reef"\npartitions = [{ name = "old", note = "x" }]\n[systems.nodes.gone]\ncores = 1\n'
    (tmp_path / "additions" / "reef.toml").write_text(own)
    told = [note for note in probe().notes if "additions" in note]
    assert [f"additions/reef.toml names {name}, which the cluster does not have" for name in ("old", "gone")] == told


def test_additions_that_cannot_be_read_stop_the_probe_before_it_writes(probe, tmp_path):
    (tmp_path / "additions").mkdir()
    (tmp_path / "additions" / "reef.toml").write_text('[[systems]]\nname = "reef"\nkind = 3\n')
    with pytest.raises(InvalidInput, match=r"additions/reef\.toml: line 3"):
        probe()
    assert list((tmp_path / "sites").glob("*")) == [] if (tmp_path / "sites").exists() else True


def test_a_probed_file_that_was_edited_is_never_lost(probe, tmp_path):
    file = tmp_path / "sites" / "reef.toml"
    for number in (1, 2):
        probe()
        edited = file.read_text().replace('status = "production"', 'status = "by hand"')
        file.write_text(edited)
        found = probe()
        assert (str(tmp_path / "sites" / f"reef.toml.edited-{number}"), edited) == (
            found.kept,
            (tmp_path / "sites" / f"reef.toml.edited-{number}").read_text(),
        )
        assert any("was edited by hand" in note for note in found.notes)


def test_an_edited_file_that_cannot_be_read_is_kept_too(probe, tmp_path):
    probe()
    file = tmp_path / "sites" / "reef.toml"
    broken = file.read_text().replace('kind = "cluster"', "kind = 7")
    file.write_text(broken)
    found = probe()
    assert broken == (tmp_path / "sites" / "reef.toml.edited-1").read_text()
    assert any("changes unknown" in note for note in found.notes)


@pytest.mark.parametrize("name", ["reef.toml", "lab.toml"])
def test_a_system_that_the_user_wrote_by_hand_is_not_touched(probe, tmp_path, name):
    own = probe(save=False).text.partition("\n\n")[2].replace("batch", "mine")
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / name).write_text(own)
    with pytest.raises(InvalidInput, match="describes reef by hand"):
        probe()
    assert own == (tmp_path / "sites" / name).read_text()
    assert probe("reef2").system.name == "reef2"


# What does not answer


def test_without_slurm_the_error_names_the_login_node(probe):
    missing = InvalidInput("'scontrol' cannot be started: there is no such program")
    with pytest.raises(SchedulerUnreachable, match="no Slurm on this machine") as raised:
        probe(**{"scontrol show config": missing})
    assert raised.value.exit_code == 4


@pytest.mark.parametrize(
    "command", ["scontrol show config", "scontrol -a -o show partition", "scontrol -a -o show node"]
)
@pytest.mark.parametrize("answer", [DOWN, CompletedProcess(-15, "", "", timed_out=True)], ids=["down", "hangs"])
def test_an_unreachable_controller_is_reported_in_one_sentence(probe, tmp_path, command, answer):
    with pytest.raises(SchedulerUnreachable) as raised:
        probe(**{command: answer})
    said = "Unable to contact slurm controller" if answer is DOWN else f"no answer within {COMMAND_S:.0f} s"
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "sites").exists()


def test_sinfo_replaces_a_forbidden_scontrol(probe):
    listing = "batch|2-00:00:00|1-infinite|2|48|190000|(null)|cascade|c[001-002]\n"
    found = probe(**{"scontrol -a -o show node": DENIED, "sinfo": listing})
    assert found.system.partition("batch").node.cores == 48
    assert any("scontrol show node failed (Access/permission denied)" in note for note in found.notes)


def test_hidden_partitions_are_reported(probe):
    denied = {"scontrol -a -o show partition": DENIED, "scontrol -a -o show node": DENIED, "sinfo": DENIED}
    with pytest.raises(LeadlineError, match="PrivateData") as raised:
        probe(**denied)
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            CompletedProcess(1, "", "sacctmgr: error: Sending PersistInit msg: Connection refused\n"),
            "Connection refused",
        ),
        (
            CompletedProcess(1, "", "You are not running a supported accounting_storage plugin\n"),
            "not running a supported",
        ),
        (CompletedProcess(1, "", " Access/permission denied\n"), "permission denied"),
        (CompletedProcess(0, "", "", timed_out=True), "no answer within"),
        (InvalidInput("there is no such program"), "sacctmgr is not installed"),
    ],
)
def test_a_failing_accounting_leaves_only_its_limits_unknown(probe, answer, said):
    found = probe(sacctmgr=answer, **{"sacctmgr -n -P show qos": answer, "sacctmgr -n -P show assoc": answer})
    assert [partition.name for partition in found.system.partitions] == ["batch", "gpu"]
    assert any(said in note for note in found.notes)
    assert any("limits of your accounts are not known" in note for note in found.notes)
    assert found.system.scheduling.accounting_answered is False


def test_a_cluster_without_accounting_is_not_queried_for_it(tmp_path):
    run = Answering(
        **{"scontrol show config": outputs.config("20.11.8", accounting="accounting_storage/none", enforce="none")}
    )
    found = probe_system(None, run=run, catalog=TomlCatalog(tmp_path), folder=tmp_path, today=DAY)
    assert not [words for words in run.asked if words.startswith("sacctmgr")]
    assert any("keeps no accounting" in note for note in found.notes)


def test_gpus_of_this_machine_come_from_its_driver(probe):
    found = probe(**{"nvidia-smi": "NVIDIA A100-SXM4-40GB\nNVIDIA A100-SXM4-40GB\n"})
    assert found.here.gpus == ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")
    assert probe(**{"nvidia-smi": CompletedProcess(9, "", "no driver")}).here.gpus == ()


def test_a_partition_with_unknown_gpus_is_refused_with_the_reason(probe, tmp_path):
    lab = {"partition": outputs.V22_05_PARTITIONS, "node": outputs.V22_05_NODES}
    probe(**{f"scontrol -a -o show {what}": listing for what, listing in lab.items()})
    with pytest.raises(InvalidInput, match="its GPU model is unknown"):
        resolve_targets(TomlCatalog(tmp_path), ["reef:gpu"], Workload(ModelSource(ModelKind.HF_CONFIG, "c.json")))


def test_the_file_names_its_author_and_the_file_for_additions(probe, tmp_path):
    probe()
    first, second, *_ = (tmp_path / "sites" / "reef.toml").read_text().splitlines()
    assert first.startswith("# Written by leadline systems probe on 2026-03-02")
    assert "../additions/reef.toml" in second
