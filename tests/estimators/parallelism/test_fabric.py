"""The links between the GPUs of a job where the system, its nodes or its network are not known."""

import json
from dataclasses import replace

import pytest

from leadline.app import settings
from leadline.app.composition import toolbox
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.hardware import PCIE_BYTES_PER_S, Device, DeviceKind
from leadline.core.workload import ModelKind, ModelSource, NetworkRate, Workload
from leadline.estimators.parallelism.fabric import (
    FASTEST_LINK,
    LINK_EFFICIENCY,
    SLOWEST_LINK,
    UNKNOWN_LINK,
    job_fabric,
    make_ring,
    usual_server,
)
from leadline.interfaces.cli.main import main

CATALOG = TomlCatalog()
GBIT = 1e9 / 8
JOB = Workload(ModelSource(ModelKind.HF_CONFIG, "config.json"))


def fabric(device, gpus, nodes=None, network_bytes_per_s=None, **changes):
    return job_fabric(replace(JOB, gpus=gpus, **changes), CATALOG.device(device), nodes, network_bytes_per_s)


@pytest.mark.parametrize(
    ("device", "nodes", "islands", "node_gbits"),
    [
        ("H100 SXM5 80GB", 8, 8, 3200),
        ("H200 SXM", 8, 8, 3200),
        ("B200 SXM", 8, 8, 3200),
        ("A100 SXM4 80GB", 8, 8, 1600),
        ("V100 SXM2 32GB", 8, 8, 200),
        ("A100 PCIe 80GB", 8, 8, 100),
        ("L40S", 8, 8, 100),
        ("MI300X", 8, 8, 3200),
    ],
)
def test_64_gpus_are_the_usual_servers_of_their_generation(device, nodes, islands, node_gbits):
    links = fabric(device, 64)
    assert (links.nodes, links.islands) == (nodes, islands)
    assert links.island_bytes_per_s == pytest.approx(node_gbits * GBIT)
    assert links.low_bytes_per_s < links.island_bytes_per_s <= links.high_bytes_per_s
    assert len(links.assumptions) == 2


def test_a_rack_of_72_gpus_is_one_domain():
    links = fabric("GB200 (per GPU)", 72)
    assert (links.nodes, links.islands) == (18, 1)
    several = fabric("GB200 (per GPU)", 144)
    assert (several.nodes, several.islands) == (36, 2)
    assert several.island_bytes_per_s == pytest.approx(72 * 400 * GBIT)


@pytest.mark.parametrize(
    ("device", "nodes", "islands"),
    [
        ("Cloud TPU v4", 16, 1), ("Cloud TPU v5e", 8, 1), ("Cloud TPU v5p", 16, 1), ("Cloud TPU v6e", 8, 1),
        ("MI300A", 16, 16), ("Intel Max 1550", 11, 11), ("Gaudi 2", 8, 8), ("MI250X GCD", 8, 8),
    ],
)  # fmt: skip
def test_64_chips_are_slices_or_servers_as_their_vendor_sells_them(device, nodes, islands):
    links = fabric(device, 64)
    assert (links.nodes, links.islands) == (nodes, islands)
    assert any("assumed network" in text for text in links.assumptions) == (islands > 1)
    assert not any("12.5 Gb/s" in text for text in links.assumptions)


@pytest.mark.parametrize(
    ("device", "peak_bytes_per_s"),
    [
        ("Cloud TPU v4", 300e9), ("Cloud TPU v5e", 200e9), ("Cloud TPU v5p", 600e9), ("Cloud TPU v6e", 400e9),
        ("MI300A", 384e9), ("MI250X GCD", 150e9), ("MI250 GCD", 150e9), ("MI100", 138e9), ("Gaudi 2", 262.5e9),
        ("Gaudi 3", 525e9),
    ],
)  # fmt: skip
def test_chips_are_joined_at_the_rate_their_vendor_states(device, peak_bytes_per_s):
    assert make_ring(CATALOG.device(device), 4).bytes_per_s == pytest.approx(peak_bytes_per_s * LINK_EFFICIENCY)


ACCELERATORS = [device for device in CATALOG.devices() if device.kind is not DeviceKind.CPU]
PAIRS_OR_FOURS = "GH200 144GB HBM3e (Hopper die)"  # its nodes have two or four: a node type states how many are joined


@pytest.mark.parametrize("device", ACCELERATORS, ids=lambda device: device.name)
def test_a_catalog_device_states_its_link_with_its_reach(device):
    assert (device.link_bytes_per_s is None) == (device.scale_up_gpus is None) or device.name == PAIRS_OR_FOURS


@pytest.mark.parametrize("device", ACCELERATORS, ids=lambda device: device.name)
def test_no_catalog_device_gets_the_link_or_the_network_of_another(device):
    here = make_ring(device, 4).bytes_per_s
    own = [(device.link_bytes_per_s or 0) / 2 * LINK_EFFICIENCY, device.host_bytes_per_s]
    inside = job_fabric(replace(JOB, gpus=4), device, 1, None)
    assert here in own or (
        inside.unknown_link and f"link between {device.name} of a node: any" in inside.assumptions[-1]
    )
    beyond = 2 * max(device.scale_up_gpus or 1, usual_server(device).gpus)
    (network,) = (text for text in fabric(device.name, beyond).assumptions if "assumed network" in text)
    form = f"as usual for {device.form_factor} devices"
    assert f"as usual for {device.name}" in network or f"that of {device.name} is unknown" in network or form in network
    assert device.form_factor in ("PCIe", "module") or form not in network


NAMELESS = Device("new chip", "vendor", DeviceKind.ACCELERATOR)
LINKED = replace(NAMELESS, scale_up_gpus=8, pcie_generation=4)


@pytest.mark.parametrize("device", [NAMELESS, LINKED, replace(NAMELESS, link_bytes_per_s=600e9, scale_up_gpus=2)])
def test_an_unknown_link_is_any_link(device):
    links = job_fabric(replace(JOB, gpus=8), device, 1, None)
    assert links.unknown_link
    assert make_ring(device, 8).bytes_per_s == UNKNOWN_LINK
    assert [make_ring(end, 8).bytes_per_s for end in links.link_ends(device)] == [SLOWEST_LINK, FASTEST_LINK]


def test_an_unknown_network_is_any_network():
    links = job_fabric(replace(JOB, gpus=64), NAMELESS, 8, None)
    assert (links.low_bytes_per_s, links.high_bytes_per_s) == (8 * 3 * GBIT, 8 * 800 * GBIT)
    assert "since that of new chip is unknown" in " ".join(links.assumptions)


def test_nodes_of_a_rack_that_the_site_divides_are_not_joined():
    device = replace(CATALOG.device("GB200 (per GPU)"), scale_up_gpus=2)
    assert job_fabric(replace(JOB, gpus=8), device, 4, 100e9).islands == 4


@pytest.mark.parametrize(
    ("technology", "efficiency"),
    [("InfiniBand NDR", 0.94), ("RoCE", 0.66), ("EFA", 0.57), ("Slingshot 11", 0.8), (None, 0.8)],
)
def test_a_network_carries_the_share_that_was_published_of_its_technology(technology, efficiency):
    device = CATALOG.device("H100 SXM5 80GB")
    links = job_fabric(replace(JOB, gpus=16), device, 2, 400e9, technology)
    ring = make_ring(device, 16, 2, links.island_bytes_per_s, network_efficiency=links.network_efficiency)
    assert ring.bytes_per_s == pytest.approx(min(efficiency * 400e9, 450e9 * LINK_EFFICIENCY))


def test_a_server_s_link_does_not_join_its_neighbour():
    assert fabric("A100 SXM4 40GB", 8, nodes=2, network_bytes_per_s=100e9).islands == 2


def test_what_the_catalog_knows_is_not_assumed():
    links = fabric("H100 SXM5 80GB", 64, nodes=8, network_bytes_per_s=50e9)
    assert links.low_bytes_per_s == links.island_bytes_per_s == links.high_bytes_per_s == 50e9
    assert links.assumptions == ()


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("3200Gb/s", NetworkRate(400e9)),
        ("3.2 Tb/s", NetworkRate(400e9)),
        ("400GB/s/node", NetworkRate(400e9)),
        ("400Gb/s/gpu", NetworkRate(50e9, per_gpu=True)),
        ("400 Gbps per GPU", NetworkRate(50e9, per_gpu=True)),
        ("200gbit/s", NetworkRate(25e9)),
    ],
)
def test_a_given_network_overrides_the_usual_and_the_catalog_s(text, rate, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    work = read_workload([str(tmp_path / "config.json")], WorkloadOptions(network=text, gpus=16))
    assert work.network == rate
    links = job_fabric(work, CATALOG.device("H100 SXM5 80GB"), 2, 1e9)
    assert links.island_bytes_per_s == links.low_bytes_per_s == rate.bytes_per_s * (8 if rate.per_gpu else 1)


@pytest.mark.parametrize(
    "text", ["400", "fast", "400 Gb", "-1Gb/s", "0Gb/s", "1e9Gb/s", "9" * 40 + "Gb/s", "400Gb/s/rack"]
)
def test_a_network_without_a_unit_or_beyond_reason_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInput, match="write a rate with its unit, as in 3200Gb/s"):
        read_workload([str(tmp_path / "config.json")], WorkloadOptions(network=text))


def test_bridged_cards_beyond_the_bridge_meet_at_their_slots():
    pair = Device("X", "nvidia", DeviceKind.GPU, link_bytes_per_s=600e9, scale_up_gpus=2, pcie_generation=4)
    assert make_ring(pair, 2).bytes_per_s == 300e9 * LINK_EFFICIENCY
    assert make_ring(pair, 4).bytes_per_s == PCIE_BYTES_PER_S[4]


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_hidden_layers": 16, "vocab_size": 32000, "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def estimated(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    toolbox.cache_clear()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))

    def run(*words):
        assert main(["estimate", str(path), "--batch", "1", "--steps", "10", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    yield run
    toolbox.cache_clear()


@pytest.mark.parametrize("plan", [("--sharding", "full"), ("--tensor-parallel", "4", "--pipeline-parallel", "2")])
def test_the_output_names_the_assumed_network_and_a_given_one_narrows_it(estimated, plan):
    words = ("--gpus", "64", "--on", "H100 SXM5 80GB", *plan)
    unknown, given = estimated(*words), estimated(*words, "--network", "400Gb/s/gpu")
    reasons = " ".join(unknown["basis"]["reasons"])
    assert "assumed 8 nodes of 8 GPUs: name a system with known nodes after --on" in reasons
    assert "assumed network: 400 Gb/s a GPU, as usual for H100 SXM5 80GB" in reasons
    assert "assumed network" not in " ".join(given["basis"]["reasons"])
    assert given["step_s"]["point"] == unknown["step_s"]["point"]
    assert given["step_s"]["high"] < unknown["step_s"]["high"]
    assert unknown["target"]["nodes"] == 8


UNKNOWN_CHIP = """[[devices]]
name = "chip"
vendor = "v"
kind = "gpu"
confidence = "known"
source = "me"
as_of = "2026"
memory_gib = 80
memory_gb_per_s = 2000
tflops = { float32 = 20, bfloat16 = 300 }
"""


@pytest.mark.parametrize(("vendor", "nodes"), [("v", 1), ("nvidia", 1), ("v", 8)])
def test_the_interval_covers_an_unknown_link_and_the_output_says_so(estimated, vendor, nodes):
    folder = settings.catalog_dir() / "devices"
    folder.mkdir(parents=True)
    chip = UNKNOWN_CHIP.replace('"v"', f'"{vendor}"')
    linked = chip.replace('"chip"', '"linked"') + "link_gb_per_s = 267\nscale_up_gpus = 8\n"
    (folder / "chips.toml").write_text(chip + linked)
    words = ("--gpus", str(8 * nodes), "--sharding", "full", "--network", "400Gb/s")
    unknown, known = (estimated(*words, "--on", name) for name in ("chip", "linked"))
    widths = [answer["step_s"]["high"] / answer["step_s"]["low"] for answer in (unknown, known)]
    # Between nodes, the network of 400 Gb/s a node decides, whatever the link is.
    assert widths[0] > (1.5 if nodes == 1 else 0.8) * widths[1]
    said = "assumed link between chip of a node: any, the interval covers 12 to 900 GB/s one way"
    assert [said in answer["basis"]["reasons"] for answer in (unknown, known)] == [True, False]


@pytest.mark.parametrize("plan", [("--sharding", "full"), ("--sharding", "optimizer")])
def test_one_domain_over_several_nodes_is_an_assumption_too(estimated, plan):
    rack = estimated("--gpus", "64", "--on", "GB200 (per GPU)", *plan)
    reasons = " ".join(rack["basis"]["reasons"])
    assert "assumed 16 nodes of 4 GPUs" in reasons
    assert "assumed: 64 GPUs in one domain of the devices' own link" in reasons
    assert "assumed network" not in reasons


def test_a_system_s_own_network_is_used(estimated):
    aws = estimated("--gpus", "64", "--sharding", "full", "--on", "AWS us-east-1:p5.48xlarge")
    assert not any(word in reason for reason in aws["basis"]["reasons"] for word in ("network", "nodes", "link"))
    slow = estimated("--gpus", "64", "--sharding", "full", "--on", "AWS us-east-1:p5.48xlarge", "--network", "100Gb/s")
    assert slow["step_s"]["point"] > 3 * aws["step_s"]["point"]
