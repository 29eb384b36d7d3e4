"""Measured training steps of language models show the host's launches and the device's speed, and no other device's."""

import json

import pytest

from leadline.app.composition import toolbox
from leadline.app.estimate.adapt import adapt, forget_device
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.step_estimators import select_kernels
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.graphs.hf_config.expand import expand
from leadline.training.adapted_steps import adapted_steps_path, read_adapted_steps

DEVICE = "A100 SXM4 80GB"
GPT = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
FITTED_S, LAUNCH_S = 9.2e-6, 30e-6
"""Host seconds of an op by the shipped fit, and in the host that the tests make up."""

pytestmark = pytest.mark.usefixtures("forked_traces")


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT))
    return path


def estimate_step(config, device=DEVICE, **options):
    workload = read_workload([str(config)], WorkloadOptions(**{"batch": 1, "seq": 128, "precision": "bf16", **options}))
    return estimate(workload, toolbox(), on=[device]).estimates[0]


def write_table(config, batches, gpus=1):
    """Steps in a host of ``LAUNCH_S``, but for the noise of two runs."""
    rows = []
    for number, batch in enumerate(batches):
        step_s = estimate_step(config, batch=batch, gpus=gpus, launch="30us").step_s.point
        rows.append(f"{config},{batch},128,bf16,{gpus},{step_s * (1 + 0.02 * (number % 2))}")
    path = config.parent / "steps.csv"
    path.write_text("\n".join(["workload,batch,seq,precision,gpus,step_s", *rows]) + "\n")
    return path


@pytest.fixture
def table(config):
    return write_table(config, (1, 2, 4, 8, 16, 32, 64))


def test_measured_steps_show_the_launch_cost_of_the_host(config, table):
    before, elsewhere = estimate_step(config), estimate_step(config, "H100 SXM5 80GB")
    answer = adapt(table, toolbox(), device=DEVICE)
    # Steps of a single model cannot tell launches from the constant of a step, which takes a part.
    assert 1.5 * FITTED_S < answer.whole_steps.launch_s < 1.1 * LAUNCH_S
    assert answer.whole_steps.error < answer.whole_steps.before / 2
    after = estimate_step(config)
    truth = estimate_step(config, launch="30us").step_s
    assert abs(after.step_s.point - truth.point) < abs(before.step_s.point - truth.point) / 2
    assert after.step_s.low < truth.point < after.step_s.high
    assert after.step_s.high / after.step_s.low < before.step_s.high / before.step_s.low
    assert after.basis.reasons[0].startswith(
        "estimated with the training-step model, adapted to 7 measured steps (steps.csv): error"
    )
    assert estimate_step(config, "H100 SXM5 80GB") == elsewhere


def test_other_estimators_use_the_launch_cost_of_the_adapted_host(config, table):
    workload = read_workload([str(config)], WorkloadOptions(batch=1, seq=128, phase="inference", precision="bf16"))
    device, job = toolbox().catalog.device(DEVICE), expand(workload)
    before_s = select_kernels(device, job).launch_s(job.step.ops[0])
    launch_s = adapt(table, toolbox(), device=DEVICE).whole_steps.launch_s
    model = select_kernels(device, job)
    kernels = getattr(model, "kernels", model)
    assert kernels.launch_s(job.step.ops[0]) == pytest.approx(launch_s)
    assert before_s < 0.7 * launch_s


def test_adapters_and_many_gpus_of_the_host_become_slower_too(config, table):
    before = {gpus: estimate_step(config, gpus=gpus).step_s.point for gpus in (1, 8)}
    adapt(table, toolbox(), device=DEVICE)
    for gpus, point in before.items():
        assert estimate_step(config, gpus=gpus).step_s.point > 1.2 * point


def test_three_steps_on_many_gpus_suffice(config):
    answer = adapt(write_table(config, (1, 2, 4), gpus=8), toolbox(), device=DEVICE)
    assert answer.whole_steps.runs == 3
    assert answer.records == ()


def test_the_adaptation_is_kept_and_forgotten(config, table):
    before = estimate_step(config)
    answer = adapt(table, toolbox(), device=DEVICE)
    kept = read_adapted_steps(adapted_steps_path(config.parent / "data" / "adapted", toolbox().catalog.device(DEVICE)))
    assert kept.card.whole_steps == answer.whole_steps
    assert kept.coefficients.launch_s == pytest.approx(answer.whole_steps.launch_s)
    forget_device(DEVICE, toolbox())
    assert estimate_step(config) == before


def test_steps_that_contradict_each_other_are_not_used(config, tmp_path):
    rows = [f"{config},{batch},128,bf16,{10.0 ** (batch % 3 - 1)}" for batch in range(1, 9)]
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(["workload,batch,seq,precision,step_s", *rows]) + "\n")
    with pytest.raises(Exception, match="does not improve the estimates"):
        adapt(path, toolbox(), device=DEVICE)
