"""A table of own steps changes what is estimated on that device, and can be forgotten; bad tables are told apart."""

import json
from pathlib import Path

import pytest

from leadline.app.composition import toolbox
from leadline.app.estimate.adapt import adapt, forget_device, measured_steps
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.step_estimators import select_shipped_kernels
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import Tier
from leadline.graphs.hf_config.expand import expand
from leadline.training.adapted_steps import adapted_steps_path, read_adapted_steps

DEVICE = "A100 SXM4 80GB"
GPT = {"model_type": "gpt2", "n_embd": 768, "n_layer": 2, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


pytestmark = pytest.mark.usefixtures("forked_traces")


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT))
    return path


def told_s(config, batch, device=DEVICE):
    workload = read_workload([str(config)], WorkloadOptions(batch=batch, seq=512, precision="fp32"))
    return estimate(workload, toolbox(), on=[device]).estimates[0]


def kernels_s(config, batch):
    """Return the seconds of a step by the shipped kernels, which adaptation moves."""
    workload = read_workload([str(config)], WorkloadOptions(batch=batch, seq=512, precision="fp32"))
    device, job = toolbox().catalog.device(DEVICE), expand(workload)
    return select_shipped_kernels(device, job).step_s(job.step)


@pytest.fixture
def table(config, tmp_path):
    """Steps that take half as long again as the kernels are estimated, but for the noise of two runs."""
    rows = [f"{config},{batch},512,fp32,{1.5 * kernels_s(config, batch) * (1 + 0.02 * (batch % 2))}"
            for batch in (1, 2, 3, 4, 6, 8)]  # fmt: skip
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(["workload,batch,seq,precision,step_s", *rows]) + "\n")
    return path


def test_own_steps_move_the_estimate_of_that_device_and_no_other(config, table):
    before, other = told_s(config, 5), told_s(config, 5, "H100 SXM5 80GB")
    answer = adapt(table, toolbox(), device=DEVICE)
    (language, rest) = answer.records
    assert language.by_law or pytest.approx(1.5, rel=0.05) == language.factor
    assert pytest.approx(1.5, rel=0.05) == rest.factor
    assert language.error < 0.05
    assert language.before > 0.05
    assert rest.group is None
    after = told_s(config, 5)
    assert pytest.approx(1.5 * kernels_s(config, 5), rel=0.05) == after.step_s.point
    assert after.step_s.high / after.step_s.low < before.step_s.high / before.step_s.low
    assert (Tier.LEARNED, f"white-box, {language.estimator}, adapted") == (after.basis.tier, after.estimator)
    assert after.basis.reasons[0].startswith(
        "adapted to 6 measured steps of language training in single precision (steps.csv)"
    )
    assert other == told_s(config, 5, "H100 SXM5 80GB")


def test_an_adaptation_is_one_file_that_forget_deletes(config, table):
    before = told_s(config, 5)
    answer = adapt(table, toolbox(), device=DEVICE)
    assert (
        read_adapted_steps(
            adapted_steps_path(table.parent / "data" / "adapted", toolbox().catalog.device(DEVICE))
        ).card.records
        == answer.records
    )
    assert answer.path == forget_device(DEVICE, toolbox())
    assert before == told_s(config, 5)
    with pytest.raises(LeadlineError, match="A100 SXM4 80GB is not adapted on this machine"):
        forget_device(DEVICE, toolbox())


def test_no_save_writes_nothing(config, table):
    assert adapt(table, toolbox(), device=DEVICE, keep=False).path is None
    assert not (table.parent / "data").exists()


def test_a_broken_file_is_reported_with_the_fix(config, table):
    path = adapt(table, toolbox(), device=DEVICE).path
    Path(path).write_bytes(Path(path).read_bytes()[:100])
    found = told_s(config, 5)
    assert found.step_s is None
    assert "delete it, and run leadline adapt again" in found.unknown["step_s"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workload,batch\nconfig.json,1\n", "has no column step_s: it needs workload and step_s, and may have options"),
        ("workload,step_s\nconfig.json,fast\n", "line 2 of {path} has step_s 'fast': write the seconds of one step"),
        ("workload,step_s\nconfig.json,-1\n", "line 2 of {path} has step_s '-1'"),
        ("workload,step_s\n,0.1\n", "line 2 of {path} has no workload"),
        ("workload,batch,step_s\n{config},many,0.1\n", "line 2 of {path} cannot be used: Expected `int | null`"),
        (
            "workload,colour,step_s\n{config},red,0.1\n",
            "line 2 of {path} cannot be used: Object contains unknown",
        ),
        (
            "workload,gpus,precision,step_s\n{config},2,fp32,0.1\n",
            "line 2 of {path} ran on 2 GPUs, but only training steps of language models in 16 bits may",
        ),
        (
            "workload,batch,seq,precision,step_s\n{config},1,512,fp32,0.1\n",
            "has 1 steps, but at least 5 on one GPU are needed, or 3 training steps",
        ),
    ],
    ids=["no seconds", "no number", "negative", "no workload", "no batch", "no option", "two GPUs", "one row"],
)
def test_a_row_that_cannot_be_used_is_named_with_its_line(config, tmp_path, text, says):
    path = tmp_path / "steps.csv"
    path.write_text(text.format(config=config))
    with pytest.raises(InvalidInput) as caught:
        adapt(path, toolbox(), device=DEVICE)
    assert says.format(path=path) in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_steps_that_contradict_each_other_are_not_learned_from(config, tmp_path):
    rows = [f"{config},{batch},512,fp32,{10.0 ** (batch % 3 - 1)}" for batch in range(1, 9)]
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(["workload,batch,seq,precision,step_s", *rows]) + "\n")
    with pytest.raises(
        InvalidInput,
        match=r"does not improve the estimates: on left-out models, the learned kernels has an error of \d+%",
    ):
        adapt(path, toolbox(), device=DEVICE)


def test_a_device_must_be_named_and_known(config, table):
    with pytest.raises(InvalidInput, match="does not name its device: add --device"):
        adapt(table, toolbox())
    with pytest.raises(InvalidInput, match="Name the device with --device, or run leadline calibrate on it first"):
        adapt(table, toolbox(), device="A1000 of nobody")


@pytest.mark.slow
def measured_file(path, times_s=None, **device):
    header = {
        "kind": "header", "schema": "leadline.measure/1", "kit": "1", "measured_at": "2026-01-01T00:00:00Z",
        "device": {"type": "cuda", "name": "RTX 3090", "memory_bytes": 24 * 2**30, "compute_units": 82, **device},
        "software": {"torch": "2.9.0"}, "rates": {"float32": 1e13}, "op_columns": [],
    }  # fmt: skip
    points = [
        {"kind": "point", "key": f"{model}-32/inference/amp-fp16/b{batch}", "outcome": "ok", "measured_at": "",
         "point": {"model": model, "size": 32, "phase": "inference", "precision": "amp-fp16", "batch": batch,
                   "channels_last": model == "vgg-mini"},
         "step_s": times_s[batch] if times_s else 0.004 * batch / 64}
        for model in ("resnet-mini", "vgg-mini") for batch in (64, 128, 256, 512, 1024)
    ]  # fmt: skip
    path.write_text("\n".join(json.dumps(one) for one in (header, *points)) + "\n")
    return path


def test_points_of_a_measured_file_are_traced_and_learned(config, tmp_path):
    pytest.importorskip("torch")
    path = measured_file(tmp_path / "rtx.jsonl")
    seen = []
    answer = adapt(path, toolbox(), progress=lambda where, number, count: seen.append((where, number, count)))
    assert answer.device == "RTX 3090"
    assert True in {record.channels_last for record in answer.records}
    assert seen[0] == ("the point resnet-mini-32/inference/amp-fp16/b64 of rtx.jsonl", 1, 10)
    assert all(record.error < record.before for record in answer.records)


def test_steps_of_a_card_under_a_power_limit_are_not_taken_for_its_factory_limit(config, tmp_path):
    pytest.importorskip("torch")

    path = measured_file(tmp_path / "rtx.jsonl")
    with measured_steps(path, 5) as (steps, _):
        times_s = {
            step.workload.batch: 2 * estimate(step.workload, toolbox(), on=["RTX 3090"]).estimates[0].step_s.point
            for step in steps
        }

    def adapted(power_limit_w):
        measured_file(path, times_s, limits={"power_limit_w": power_limit_w})
        return adapt(path, toolbox(), most=5, keep=False)

    full, limited = adapted(350.0), adapted(200.0)
    assert not any("power limit" in note for note in full.notes)
    assert any(note.startswith("power limit 200 W of 350 W") for note in limited.notes)
    assert full.records[-1].factor == pytest.approx(2, rel=0.05)
    assert 1 < limited.records[-1].factor < 0.995 * full.records[-1].factor
