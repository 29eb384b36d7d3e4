"""The commands that ask before a job runs: estimate, recommend, systems, devices."""

import json
import sys

import pytest

from leadline.app.composition import user_catalog
from leadline.interfaces.cli.commands import COMMANDS
from leadline.interfaces.cli.main import main

LLAMA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8,
    "num_hidden_layers": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_document_has_the_times_per_token(capsys, config):
    asked = ("--phase", "inference", "--batch", "4", "--seq", "512", "--generate", "64", "--json")
    code, out, err = run(capsys, "estimate", config, "--on", "A100 SXM4 80GB", *asked)
    document = json.loads(out)
    told = document["token_times"]
    assert (code, err) == (0, "")
    assert (told["prompt_tokens"], told["generated_tokens"]) == (512, 64)
    assert told["kv_cache_bytes"] == 2 * 4 * 512 * 4 * 2 * (512 + 63)  # 2 bytes: a file without a dtype counts as bf16
    for quantity in ("time_to_first_token_s", "time_per_output_token_s", "first_decode_step_s", "last_decode_step_s",
                     "output_tokens_per_s"):  # fmt: skip
        assert 0 < told[quantity]["low"] < told[quantity]["point"] < told[quantity]["high"]
    assert document["workload"]["generated"] == 64


def test_generation_has_a_table_of_its_own_with_a_row_for_each_place(capsys, config):
    asked = ("--phase", "inference", "--seq", "512", "--generate", "64")
    places = ("--on", "A100 SXM4 80GB", "--on", "H100 SXM5 80GB")
    code, out, _ = run(capsys, "estimate", config, *asked, *places)
    lines = out.splitlines()
    (head,) = (place for place, line in enumerate(lines) if "first token" in line)
    assert code == 0
    assert all(word in lines[head] for word in ("per token", "tokens/s", "KV cache"))
    assert [place for place in places if place != "--on"] == [line[:14] for line in lines[head + 1 : head + 3]]
    code, out, _ = run(capsys, "estimate", config, "--phase", "inference", *places)
    assert (code, "first token" in out) == (0, False)


def test_the_times_per_token_of_a_device_are_shown_once(capsys, config):
    _, out, _ = run(capsys, "estimate", config, "--phase", "inference", "--generate", "64", "--all")
    table = out[out.index("first token") :].splitlines()[1:]
    rows = [line for line in table if "H100 SXM5 80GB" in line]
    assert len(rows) == 1


def test_generation_with_an_encoder_is_refused_in_one_sentence(capsys, tmp_path):
    path = tmp_path / "bert.json"
    path.write_text(json.dumps({"model_type": "bert"}))
    code, out, err = run(capsys, "estimate", str(path), "--phase", "inference", "--generate", "8")
    assert (code, out) == (2, "")
    assert "is an encoder (bert), which cannot generate: leave --generate out" in " ".join(err.split())


def test_an_estimate_for_one_place_is_one_flat_document(capsys, config):
    code, out, _ = run(capsys, "estimate", config, "--on", "A100 SXM4 80GB", "--steps", "100", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "leadline.estimate/1"
    for quantity in ("elapsed_s", "step_s", "gpu_memory_bytes", "host_memory_bytes"):
        interval = document[quantity]
        assert {"point", "low", "high", "level"} == set(interval)
        assert interval["low"] <= interval["point"] <= interval["high"]
    assert document["cost"] is None
    assert "price" in document["unknown"]["cost"]
    assert document["basis"]["tier"] == "learned"
    assert document["estimator"] == "white-box, training-step model"


def test_an_estimate_for_the_catalog_lists_every_place_and_names_the_defaults(capsys, config):
    code, out, _ = run(capsys, "estimate", config, "--json")
    document = json.loads(out)
    assert code == 0
    assert len(document["estimates"]) > 120
    assert "batch" in document["workload"]["defaulted"]
    assert tuple(document["assumed"][name] for name in ("batch", "precision", "optimizer")) == ("1", "bf16", "adamw")


def test_more_steps_take_longer_and_cost_more_on_the_same_place(capsys, config):
    costs = []
    for steps in ("1000", "2000"):
        _, out, _ = run(
            capsys, "estimate", config, "--on", "Pitzer:gpu", "--precision", "fp16", "--steps", steps, "--json"
        )
        costs.append(json.loads(out)["cost"]["point"])
    assert 0 < costs[0] < costs[1]


@pytest.mark.parametrize(
    ("choice", "name"), [("law", "op law"), ("kernels", "learned kernels"), ("specs", "maker's figures")]
)
def test_the_chosen_estimator_is_used(capsys, config, choice, name):
    assert main(["estimate", config, "--batch", "4", "--on", "L40S", "--estimator", choice, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["estimator"].endswith(f", {name}")
    assert f"the {name}, " in document["basis"]["reasons"][0]


def test_an_unknown_estimator_is_refused_with_the_known_ones(capsys, config):
    assert main(["estimate", config, "--on", "T4", "--estimator", "oracle"]) == 2
    said = capsys.readouterr().err
    assert "oracle" in said
    assert "law" in said
    assert "specs" in said


def test_the_table_shows_the_basis_of_the_estimate(capsys, config):
    code, out, _ = run(capsys, "estimate", config, "--on", "Perlmutter:regular-gpu80")
    assert code == 0
    assert "learned tier" in out
    assert "by default or from the model: phase training, batch 1, precision bf16, optimizer adamw" in out


def test_recommend_asks_for_the_cheapest_within_the_deadline(capsys, config):
    code, out, _ = run(capsys, "recommend", config, "--steps", "1000", "--deadline", "1h", "--json")
    document = json.loads(out)
    assert code == 0
    priced = [option["estimate"] for option in document["options"] if option["estimate"]["cost"]]
    dollars = [estimate["cost"]["point"] for estimate in priced if estimate["currency"] == "USD"]
    assert dollars
    assert sorted(dollars) == dollars
    assert all(one["resources"]["walltime_s"] >= one["estimate"]["elapsed_s"]["point"] for one in document["options"])
    assert all(one["reason"] for one in document["rejections"])


def test_when_nothing_fits_the_exit_code_is_3_and_the_smallest_change_is_named(capsys, config):
    code, out, err = run(capsys, "recommend", config, "--steps", "100000000", "--deadline", "1m", "--json")
    assert code == 3
    assert json.loads(out)["options"] == []
    assert "would make" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--on", "Pizter"], "Pitzer"),
        (["--on", "Pitzer:gpuu"], "gpu"),
        (["--on", "A1OO SXM4 80GB"], "A100"),
        (["--epochs", "-1"], "epochs"),
        (["--seq", "0"], "seq"),
        (["--on", "local"], "calibrate"),
    ],
)
def test_bad_input_ends_in_one_sentence_and_exit_code_2(capsys, config, arguments, says):
    code, out, err = run(capsys, "estimate", config, *arguments)
    assert code == 2
    assert out == ""
    assert says in err
    assert len([line for line in err.splitlines() if line.startswith("leadline")]) == 1


def test_a_configuration_of_an_unknown_architecture_is_refused(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llamma"}')
    code, _, err = run(capsys, "estimate", str(path))
    assert code == 2
    assert "llama" in err


def test_systems_are_listed_in_one_document(capsys):
    code, out, _ = run(capsys, "systems", "list", "--json")
    document = json.loads(out)
    assert code == 0
    assert {"schema", "systems"} == set(document)
    assert len(document["systems"]) >= 20


@pytest.mark.parametrize(
    "arguments",
    [
        ("systems", "list"),
        ("systems", "show", "pitzer"),
        ("systems", "validate"),
        ("devices", "list"),
        ("devices", "show", "H200"),
    ],
)
def test_the_catalog_is_shown(capsys, arguments):
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert len(out.splitlines()) > 5


def test_check_lists_every_partition_with_its_fit(capsys, config):
    code, out, _ = run(capsys, "systems", "check", config, "--json")
    places = json.loads(out)["places"]
    assert code == 0
    systems = [system for system in user_catalog().systems() if not system.status.startswith("decommissioned")]
    partitions = {(system.name, partition.name) for system in systems for partition in system.partitions}
    assert len(partitions) > 150
    assert {(place["system"], place["partition"]) for place in places} == partitions
    assert all(place["fits"] or place["reason"] for place in places)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert "Usage" in out


def test_an_unknown_option_before_the_double_dash_gets_a_hint(capsys):
    code, _, err = run(capsys, "estimate", "python", "train.py", "--batch-size", "3")
    assert code == 2
    assert "after --" in err


def test_output_of_a_traced_script_stays_out_of_the_answer(capfd, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, subprocess, sys, torch\n"
        "print('from the script'); print('to the other stream', file=sys.stderr)\n"
        "os.write(1, b'by number'); subprocess.run(['echo', 'by a child'])\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(9):\n"
        "    model(torch.rand(4, 8).cuda()).sum().backward()\n"
        "    optimizer.step()\n"
        "    print(step, flush=True)\n"
    )
    code, out, err = run(capfd, "estimate", "--on", "A100 SXM4 80GB", "--json", "--", sys.executable, str(script))
    assert code == 0
    assert json.loads(out)["schema"] == "leadline.estimate/1"
    assert err == ""


def test_a_saved_module_is_estimated_without_jax(capsys, tmp_path):
    step = tmp_path / "step.mlir"
    step.write_text(
        "module @jit_f {\n"
        "  func.func public @main(%arg0: tensor<4096x4096xbf16>, %arg1: tensor<512x4096xbf16>) "
        "-> tensor<512x4096xbf16> {\n"
        "    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : "
        "(tensor<512x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<512x4096xbf16>\n"
        "    return %0 : tensor<512x4096xbf16>\n  }\n}\n"
    )
    before = set(sys.modules)
    code, out, err = run(capsys, "estimate", str(step), "--phase", "inference", "--on", "A100 SXM4 80GB", "--json")
    assert code == 0, err
    document = json.loads(out)
    least_s = 2 * 512 * 4096**2 / 312e12
    assert least_s < document["step_s"]["point"] < 100 * least_s
    assert not {"jax", "torch"} & (set(sys.modules) - before)
    code, _, err = run(capsys, "estimate", str(step), "--on", "A100 SXM4 80GB")
    assert code == 2
    assert "add --phase inference" in err
