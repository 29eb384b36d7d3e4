"""What is kept elsewhere leaves the device, and costs what its link takes."""

from dataclasses import replace

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier, TokenTimes
from leadline.core.hardware import PCIE_BYTES_PER_S, Device, DeviceKind
from leadline.core.workload import Adapters, ModelKind, ModelSource, Optimizer, Phase, Workload
from leadline.estimators.memory.offload import STAYS, list_offloads

GIB = 2.0**30
DEVICE = Device("X", "nvidia", DeviceKind.GPU, memory_bytes=int(16 * GIB), pcie_generation=4)
LINKED = Device("Y", "nvidia", DeviceKind.GPU, memory_bytes=int(16 * GIB), pcie_generation=4, link_bytes_per_s=600e9)
WORK = Workload(ModelSource(ModelKind.HF_CONFIG, "config.json"))
PARTS = {"parameter": 2 * GIB, "optimizer-state": 4 * GIB, "activation": 20 * GIB}


def estimate(step_s=0.5, parts=PARTS):
    step = Interval(step_s, step_s / 1.2, step_s * 1.2)
    return Estimate(
        target=Target("X"), estimator="white-box", basis=Basis(Tier.SPECS, memory_breakdown_bytes=dict(parts)),
        elapsed_s=step, step_s=step, gpu_memory_bytes=Interval(30 * GIB, 26 * GIB, 34 * GIB),
    )  # fmt: skip


def test_offloaded_activations_take_the_time_of_the_bus():
    kept = {
        option.description.split(" of ")[1].split(" on ")[0]: option
        for option in list_offloads(estimate(), DEVICE, WORK)
    }
    swapped = kept["activations"]
    assert swapped.memory_bytes.point == pytest.approx(30 * GIB - (1 - STAYS) * 20 * GIB)
    assert swapped.step_s.point == pytest.approx(2 * 20 * GIB / PCIE_BYTES_PER_S[4])


def test_a_transfer_that_hides_behind_the_kernels_takes_no_longer():
    kept = list_offloads(estimate(step_s=60.0), DEVICE, WORK)
    assert next(case for case in kept if "activations" in case.description).step_s.point == 60.0


def test_the_update_on_the_host_comes_on_top():
    kept = next(option for option in list_offloads(estimate(), DEVICE, WORK) if "optimizer state" in option.description)
    assert kept.step_s.point > 0.5 + 2 * 2 * GIB / PCIE_BYTES_PER_S[4]
    assert kept.step_s.low < kept.step_s.point < kept.step_s.high


def test_a_neighbour_s_memory_is_proposed_where_there_is_a_link():
    assert not any(option.gpus > 1 for option in list_offloads(estimate(), DEVICE, WORK))
    beside = next(option for option in list_offloads(estimate(), LINKED, WORK) if option.gpus == 2)
    assert beside.step_s.point == pytest.approx(0.5)  # 40 GiB at 300 GB/s hide behind half a second
    assert "a neighbouring GPU (300 GB/s a direction)" in beside.description


def test_inference_keeps_its_weights_on_the_host():
    work = Workload(WORK.model, phase=Phase.INFERENCE)
    (kept,) = list_offloads(estimate(step_s=0.01), DEVICE, work)
    assert "weights" in kept.description
    assert kept.step_s.point == pytest.approx(2 * GIB / PCIE_BYTES_PER_S[4])


def answer_times(first_s, per_token_s, generated):
    """Return an estimate of whole answers: a prompt's pass and one pass for each further token."""
    first, each = (Interval(seconds, seconds / 1.2, seconds * 1.2) for seconds in (first_s, per_token_s))
    times = TokenTimes(512, generated, first, each, each, each, each, 0, None, None)
    return replace(estimate(step_s=first_s + (generated - 1) * per_token_s), token_times=times)


def test_each_generated_token_moves_the_weights_once_more():
    work, transfer_s = Workload(WORK.model, phase=Phase.INFERENCE), 2 * GIB / PCIE_BYTES_PER_S[4]
    (kept,) = list_offloads(answer_times(0.5, 0.01, 128), DEVICE, work)
    assert kept.step_s.point == pytest.approx(0.5 + 127 * transfer_s)
    (slow,) = list_offloads(answer_times(0.5, 10 * transfer_s, 128), DEVICE, work)
    assert slow.step_s.point == pytest.approx(0.5 + 127 * 10 * transfer_s)  # hidden behind the kernels of each pass


def test_every_microbatch_moves_its_activations():
    activations = [
        next(option for option in list_offloads(estimate(), DEVICE, WORK, microbatches=count)
             if "activations" in option.description).step_s.point
        for count in (1, 4)
    ]  # fmt: skip
    assert activations[1] == pytest.approx(4 * activations[0])


def update_s(work, states):
    kept = list_offloads(estimate(parts={**PARTS, "optimizer-state": states}), DEVICE, work)
    return next(option for option in kept if "optimizer state" in option.description).step_s.point - 0.5


def test_only_the_weights_of_the_states_cross_the_bus():
    adapters = replace(WORK, adapters=Adapters(16))
    assert update_s(adapters, 0.04 * GIB) == pytest.approx(update_s(WORK, 4 * GIB) / 100)
    in_bytes = replace(WORK, optimizer=Optimizer.ADAMW_8BIT)  # two states of a byte, weights of two
    assert update_s(in_bytes, 2 * GIB) == pytest.approx(
        2 * 2 * GIB / PCIE_BYTES_PER_S[4] + 2 * (2 * GIB + 4 * GIB) / 60e9
    )


CATALOG = TomlCatalog()


@pytest.mark.parametrize(
    ("name", "bytes_per_s"),
    [("GH200", 337.5e9), ("GB200", 168.75e9), ("GB300", 168.75e9), ("B200", 48e9), ("B300", 48e9), ("MI250X", 27e9),
     ("A100 SXM4 80GB", 24e9), ("H100 SXM5 80GB", 48e9)],
)  # fmt: skip
def test_each_device_has_its_own_link_to_the_host(name, bytes_per_s):
    work = Workload(WORK.model, phase=Phase.INFERENCE)
    (kept,) = list_offloads(estimate(step_s=1e-9), CATALOG.device(name), work)
    assert kept.step_s.point == pytest.approx(2 * GIB / bytes_per_s)
    assert f"({bytes_per_s / 1e9:.0f} GB/s assumed)" in kept.description


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("device", CATALOG.devices(), ids=lambda device: device.name)
def test_no_catalog_device_gets_the_slot_of_another(device, phase):
    options = list_offloads(estimate(), device, Workload(WORK.model, phase=phase))
    host = [option for option in options if "on the host" in option.description]
    assert bool(host) != device.shares_host_memory
    for option in host:
        is_unknown = f"the link of {device.name} to it is unknown" in option.description
        assert is_unknown == (device.host_link_bytes_per_s is None and device.pcie_generation is None)
        assert (option.step_s is None) == is_unknown


def test_absent_categories_are_not_offloaded():
    assert list_offloads(estimate(parts={}), DEVICE, WORK) == []
