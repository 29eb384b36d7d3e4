"""``leadline systems`` and ``leadline devices``: lists, one entry, a check, and the user's own entries."""

import json

import pytest

from leadline.app.composition import toolbox
from leadline.interfaces.cli.main import main

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_hidden_layers": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
SITE = """
site = "LAB"
name = "Our laboratory"

[[systems]]
name = "Bench"
kind = "workstation"
status = "production"
scheduler = "slurm"
confidence = "found"
source = "the machine itself"
as_of = "2026"
partitions = [
  { name = "gpu", node = "box", billing = "hours", max_walltime_h = 24 },
]

[systems.nodes.box]
count = 1
cores = 16
memory_gib = 128
device = "A100 SXM4 80GB"
gpus = 2

[systems.billing.hours]
rule = "gpu-hours"
currency = "USD"
gpu_hour = 1.5
"""


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    toolbox.cache_clear()
    yield tmp_path / "data"
    toolbox.cache_clear()


@pytest.fixture
def own_site(data):
    folder = data / "catalog" / "sites"
    folder.mkdir(parents=True)
    (folder / "lab.toml").write_text(SITE)
    return folder / "lab.toml"


def run(capsys, *words, code=0):
    assert code == main(list(words))
    return capsys.readouterr()


def test_a_site_of_the_users_own_is_one_file_and_no_code(own_site, capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    assert "Bench" in run(capsys, "systems", "list").out.splitlines()[1]
    shown = run(capsys, "systems", "show", "bench").out
    assert "2 × A100 SXM4 80GB" in shown
    assert "1.5 a GPU (USD)" in shown
    work = ["--steps", "100", "--on", "Bench", "--json"]
    answer = json.loads(run(capsys, "recommend", str(tmp_path / "config.json"), *work).out)
    assert (answer["options"][0]["system"], answer["options"][0]["partition"]) == ("Bench", "gpu")
    script = run(capsys, "submit", "--on", "Bench:gpu", "--time", "1h", "--memory", "4G", "--cores", "8", "--dry-run",
                 "--", "python", "train.py").out  # fmt: skip
    assert "#SBATCH --gpus-per-node=1\n" in script


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (("gpu_hour = 1.5", "gpu_hour = 0"), 2, "Bench:gpu has a price of zero"),
        (('device = "A100 SXM4 80GB"', 'device = "A100 SXM9"'), 2, "names the device 'A100 SXM9'"),
        (("cores = 16", "cors = 16"), 2, "line 19: there is no key 'cors' in 'box': did you mean 'cores'"),
        (('node = "box"', 'node = "bax"'), 2, "Bench:gpu names the nodes table 'bax'"),
        (('rule = "gpu-hours"', 'rule = "gpu-hour"'), 2, "rule is 'gpu-hour' in 'hours': did you mean 'gpu-hours'"),
        (('source = "the machine itself"\n', ""), 2, "the key 'source' is missing in 'Bench': add it"),
        (
            ("memory_gib = 128", 'memory_gib = "128"'),
            2,
            "line 20: memory_gib is '128' in 'box', but it must be a number",
        ),
        (('as_of = "2026"', 'as_of = "2019"'), 0, "warning: Bench:gpu its price is of 2019"),
        (("", ""), 0, "0 errors, 0 warnings"),
    ],
)
def test_a_file_is_validated_before_it_is_used(own_site, capsys, change, code, says):
    own_site.write_text(SITE.replace(*change) if change[0] else SITE)
    copy = own_site.with_name("draft.toml")
    own_site.rename(copy)
    moved = copy.rename(copy.parents[2] / "draft.toml")
    printed = run(capsys, "systems", "validate", str(moved), code=code)
    assert says in printed.out + printed.err


def test_findings_are_one_json_document(own_site, capsys):
    own_site.write_text(SITE.replace("gpu_hour = 1.5", "gpu_hour = 0"))
    printed = run(capsys, "systems", "validate", str(own_site), "--json", code=2)
    document = json.loads(printed.out)
    assert document["schema"] == "leadline.findings/1"
    assert {"entry", "problem", "fix", "error", "line"} == set(document["findings"][0])


def test_validate_lists_all_faults_of_a_file_and_of_its_good_entries(own_site, capsys):
    second = SITE[SITE.index("[[systems]]") :].replace('"Bench"', '"Second"').replace("gpu_hour = 1.5", "gpu_hour = 0")
    second = second.replace("memory_gib = 128", "memory_gib = 64")
    text = SITE.replace("cores = 16", "cors = 16").replace("memory_gib = 128", 'memory_gib = "128"')
    own_site.write_text(text.replace('source = "the machine itself"\n', "") + second)
    printed = run(capsys, "systems", "validate", str(own_site), "--json", code=2)
    findings = json.loads(printed.out)["findings"]
    assert [(one["entry"], one["line"], one["problem"], one["fix"]) for one in findings] == [
        (str(own_site), None, "the key 'source' is missing in 'Bench'", "add it"),
        (str(own_site), 18, "there is no key 'cors' in 'box'", "did you mean 'cores'?"),
        (str(own_site), 19, "memory_gib is '128' in 'box', but it must be a number", "correct it"),
        ("Second:gpu", None, "has a price of zero", "leave the price out, or set free = true"),
    ]
    assert "4 errors" in printed.err
    shown = run(capsys, "systems", "validate", str(own_site), code=2).out
    assert f"error: {own_site}: line 18: there is no key 'cors' in 'box': did you mean 'cores'?\n" in shown


def test_the_record_of_a_device_is_validated_as_a_file_is(tmp_path, capsys):
    record = json.loads(run(capsys, "devices", "show", "T4", "--json").out)
    record.pop("schema")
    file = tmp_path / "t4.json"
    file.write_text(json.dumps(record))
    assert "0 errors" in run(capsys, "systems", "validate", str(file)).err
    file.write_text(json.dumps(record | {"memory_bytes": "16", "kind": "gpuu", "tdp_w": []}))
    printed = run(capsys, "systems", "validate", str(file), code=2)
    assert printed.out.count(f"error: {file}:") == 3
    assert "kind is 'gpuu' in 'T4': did you mean 'gpu'?" in printed.out
    file.write_text("{")
    assert "t4.json cannot be read" in run(capsys, "systems", "validate", str(file), code=2).err


def test_the_shipped_catalog_has_no_errors(capsys):
    assert "0 errors" in run(capsys, "systems", "validate").err


def test_a_system_is_shown_with_its_partitions_prices_and_source(capsys):
    shown = run(capsys, "systems", "show", "osc-pitzer").out
    assert shown.startswith("Pitzer, OSC")
    assert "gpu-quad" in shown
    assert "network of quad GPU nodes: 100 Gb/s (InfiniBand EDR, 1 NIC)" in shown
    assert "source: " in shown
    document = json.loads(run(capsys, "systems", "show", "Pitzer", "--json").out)
    assert (document["schema"], document["name"]) == ("leadline.system/1", "Pitzer")
    aws = run(capsys, "systems", "show", "AWS").out
    assert "network of p5.48xlarge nodes: 3200 Gb/s (EFA, 32 NICs)" in aws
    assert "p6e-gb200.36xlarge nodes: 3200 Gb/s (EFA, 17 NICs, 72 GPUs in a scale-up domain)" in aws


def test_a_device_is_shown_with_every_known_figure_and_its_source(capsys):
    shown = run(capsys, "devices", "show", "h200").out
    figures = {line[2:22].strip(): line[23:] for line in shown.splitlines()[1:]}
    assert (figures["memory"], figures["memory rate"], figures["boost"]) == ("141 GiB", "4,800 GB/s", "1.83 GHz")
    assert "bfloat16 989, float8 1,979" in figures["peak"]
    assert figures["peak"].endswith(" TFLOP/s")
    assert "source" in figures
    assert not {"{", "[", "_"} & set("".join(figures))
    document = json.loads(run(capsys, "devices", "show", "H200", "--json").out)
    assert document["schema"] == "leadline.device/1"
    assert document["peak_flops_per_s"]["bfloat16"] > 9e14
    listed = json.loads(run(capsys, "devices", "list", "--json").out)
    assert listed["schema"] == "leadline.devices/1"
    assert document["name"] in [one["name"] for one in listed["devices"]]


def test_check_gives_the_reason_for_a_large_model(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    printed = run(capsys, "systems", "check", str(tmp_path / "config.json"), "--precision", "fp16", "--on",
                  "Pitzer").out  # fmt: skip
    rows = {line.split()[0]: line for line in printed.splitlines()[1:] if line.startswith("Pitzer:")}
    assert " no " in rows["Pitzer:gpu"]
    assert "GiB" in rows["Pitzer:gpu"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("systems", "show", "Pizter"), "unknown system 'Pizter': did you mean 'Pitzer'"),
        (("devices", "show", "h2000"), "unknown device 'h2000': did you mean 'H200'"),
        (("systems", "validate", "gone.toml"), "gone.toml cannot be read: No such file or directory; check the path"),
        (("systems", "validate", "."), ". cannot be read: Is a directory"),
        (("systems", "check"), "no workload given"),
        (("systems", "check", "gone.json"), "gone.json does not exist"),
    ],
)
def test_an_unknown_name_is_refused_with_close_ones(capsys, words, says):
    printed = run(capsys, *words, code=2)
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert says in printed.err


def test_a_broken_file_of_the_users_own_stops_with_its_name(own_site, capsys):
    own_site.write_text("systems = [\n")
    printed = run(capsys, "systems", "list", code=2)
    assert f"{own_site} is not valid TOML" in printed.err
