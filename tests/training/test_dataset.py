"""Samples from records of runs, the ranges of their features, and extrapolation."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import campaign, make_run

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.hardware import Device, DeviceKind
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.runs import Measurement, Scale
from leadline.core.trained_model import Feature, FeatureRole
from leadline.estimators.tabular.encoding import learn_encoding
from leadline.training.dataset import _outside, complete_rows, describe_extrapolation, make_dataset
from leadline.training.records import TrainingOptions, run_records

EPOCHS = Feature("epochs", FeatureRole.PARAMETER, 1, 10, whole=True)
SHIFT = Feature("shift", FeatureRole.PARAMETER, -1, 1)
KIND = Feature("kind", FeatureRole.PARAMETER, choices=("a", "b"))
NODES = Feature("nodes", FeatureRole.RESOURCE, 2, 2, whole=True, values=(2.0,), used=False)
ALL = (EPOCHS, SHIFT, KIND, NODES)


def test_rows_within_the_ranges_need_no_warning():
    assert describe_extrapolation({"epochs": 10, "shift": -1, "kind": "a", "nodes": 2}, ALL) == ()


def test_extrapolation_is_described_by_feature_value_and_range_farthest_first():
    assert describe_extrapolation({"epochs": 40, "shift": 4, "kind": "c", "nodes": 4}, ALL) == (
        "kind = c was never run; runs had a, b",
        "shift = 4 is 1.5 ranges above the runs (-1 to 1)",
        "nodes = 4 is 2 times the largest that was run (2 alone)",
        "epochs = 40 is 4 times the largest that was run (1 to 10)",
    )
    assert describe_extrapolation({"epochs": 0.5}, [EPOCHS]) == (
        "epochs = 0.5 is 2 times below the least that was run (1 to 10)",
    )
    assert describe_extrapolation({}, [EPOCHS]) == ("epochs is not given",)
    assert describe_extrapolation({"epochs": "many"}, [EPOCHS]) == (
        "epochs = many is not a number, as it was in the runs",
    )


def test_rows_get_constant_features_and_cells_in_base_units():
    assert complete_rows([{"epochs": "3 min"}], ALL) == [{"nodes": 2, "epochs": 180.0}]
    assert complete_rows([{"epochs": "3", "kind": "3", "nodes": 4}], ALL) == [{"nodes": 4, "epochs": 3.0, "kind": "3"}]
    assert complete_rows([{"kind": 3}], ALL) == [{"nodes": 2, "kind": "3"}]


def test_a_number_with_few_values_lists_them():
    features = {feature.name: feature for feature in make_dataset(run_records(campaign())).features}
    assert features["cores"].values == (1.0, 2.0, 4.0)
    assert features["samples"].values == ()
    assert (features["epochs"].low, features["epochs"].high, features["epochs"].whole) == (1, 60, True)


@given(st.floats(1e-3, 1e6), st.floats(1.5, 1e3), st.floats(1e-3, 1e6))
def test_the_distance_equals_that_of_the_estimators_encoding(low, factor, value):
    high = low * factor
    expected = learn_encoding([{"x": low}, {"x": high}]).encode([{"x": value}])[1][0]
    outside = _outside(Feature("x", FeatureRole.PARAMETER, low, high), value)
    assert math.isclose(expected, outside[0] if outside else 0.0, rel_tol=1e-6, abs_tol=1e-6)


def data_of(runs, target="elapsed_s", **more):
    return make_dataset(run_records(runs), target, TrainingOptions(**more))


def test_parameters_and_resources_are_features_and_constant_ones_are_marked():
    data = data_of(campaign())
    assert [feature.name for feature in data.features if feature.used] == ["epochs", "samples", "kind", "cores"]
    assert [feature.name for feature in data.features if not feature.used] == ["nodes", "gpus", "partition"]
    assert [feature.role for feature in data.features] == [FeatureRole.PARAMETER] * 3 + [FeatureRole.RESOURCE] * 4
    assert (data.dataset.application, data.dataset.target, len(data.dataset.samples)) == ("net", "elapsed_s", 150)


def test_features_outside_the_scaled_down_values_carry_scale():
    assert set(data_of(campaign()).dataset.scale_features) == {"epochs", "samples"}
    assert data_of(campaign(), scale_features=["epochs"]).dataset.scale_features == ("epochs",)


@pytest.mark.parametrize(
    ("named", "why"),
    [("kind", "kind is not a number"), ("gpus", "gpus is 0 in every run"), ("width", "no run has a parameter 'width'")],
)
def test_only_varying_numbers_can_carry_scale(named, why):
    with pytest.raises(InvalidInput, match=why):
        data_of(campaign(), scale_features=[named])


def test_numbers_named_as_categories_become_texts():
    data = data_of(campaign(), categories=["samples"])
    samples = next(feature for feature in data.features if feature.name == "samples")
    assert samples.categorical
    assert all(isinstance(sample.features["samples"], str) for sample in data.dataset.samples)
    assert data.dataset.scale_features == ("epochs",)
    with pytest.raises(UnknownName, match="did you mean 'samples'"):
        data_of(campaign(), categories=["sample"])


def test_only_runs_cut_off_at_the_targets_limit_are_lower_bounds():
    runs = campaign(10, 0)
    runs += [make_run(100, epochs=9, state=JobState.TIMEOUT), make_run(101, epochs=8, state=JobState.OUT_OF_MEMORY),
             make_run(102, epochs=7, state=JobState.FAILED)]  # fmt: skip
    data = data_of(runs)
    assert data.censored == 1
    assert data.failures == {"FAILED": 1, "OUT_OF_MEMORY": 1}
    memory = data_of(runs, "host_memory_bytes")
    assert memory.failures == {"FAILED": 1, "TIMEOUT": 1}
    assert [sample.value for sample in memory.dataset.samples if sample.censored] == [1e8 + 400.0 * 1000]


def test_an_unmeasured_lower_bound_is_the_requested_limit():
    cut = make_run(100, epochs=9, state=JobState.TIMEOUT)
    cut = replace(cut, measured={}, job=replace(cut.job, resources=ResourceSpec(cores_per_task=1, walltime_s=60)))
    data = data_of([*campaign(10, 0), cut])
    assert [sample.value for sample in data.dataset.samples if sample.censored] == [60]


def test_a_sample_has_its_start_up_and_work_times():
    sample = data_of([make_run(n, epochs=n + 1) for n in range(6)]).dataset.samples[0]
    assert (2.0, sample.value - 2.0) == (sample.startup_s, sample.work_s)
    assert sample.value == sample.cost_s


def test_a_memory_sample_has_no_start_up_time():
    sample = data_of([make_run(n, epochs=n + 1) for n in range(6)], "host_memory_bytes").dataset.samples[0]
    assert (sample.startup_s, sample.work_s) == (None, None)


def test_gpu_specifications_are_features_of_jobs_that_use_the_gpu():
    card = Device("V100", "NVIDIA", DeviceKind.GPU, memory_bytes=16, peak_flops_per_s={"float32": 15e12})
    tags = {"node_gpu": "Tesla V100", "node_cores": "40"}
    run = make_run(1, tags=tags)
    with_gpu = replace(run, job=replace(run.job, resources=ResourceSpec(gpus_per_node=1)))
    catalog = {"Tesla V100": card}.get
    first, second = run_records([run, with_gpu], device_of=catalog)
    assert first.features["node_cores"] == 40
    assert "node_gpu" not in first.features
    assert second.features["node_gpu_float32_flops_per_s"] == 15e12


def test_op_graph_features_join_the_others():
    runs = [make_run(n, epochs=n + 1) for n in range(6)]
    records = run_records(runs, graph_features={run.id: {"graph_flops": 1e9 * n} for n, run in enumerate(runs)})
    assert make_dataset(records).dataset.samples[5].features["graph_flops"] == 5e9


def test_a_parameter_that_some_runs_lack_is_an_error_naming_a_run():
    runs = campaign(10, 0)
    runs[3] = replace(runs[3], parameters={**runs[3].parameters, "width": 3})
    with pytest.raises(InvalidInput, match=r"width is given in 1 of 10 runs only \(run 000000000000 lacks it\)"):
        data_of(runs)
    assert "width" not in {feature.name for feature in data_of(runs, without=["width"]).features}


def test_a_parameter_that_mixes_numbers_and_texts_is_an_error():
    runs = campaign(10, 0)
    runs[3] = replace(runs[3], parameters={**runs[3].parameters, "epochs": "many"})
    with pytest.raises(InvalidInput, match="epochs is 'many' in run 000000000003 and"):
        data_of(runs)


def test_a_duplicate_run_is_an_error_by_id_or_by_content():
    runs = campaign(10, 0)
    with pytest.raises(InvalidInput, match=r"are the same run \(000000000000\)"):
        data_of([*runs, runs[0]])
    with pytest.raises(InvalidInput, match="are identical"):
        data_of([*runs, replace(runs[0], id="another")])


def test_repeats_of_a_configuration_are_not_duplicates():
    data = data_of(campaign(10, 0, repeats=3))
    assert len(data.dataset.samples) == 30


def test_an_impossible_value_is_an_error_naming_its_run():
    runs = campaign(10, 0)
    runs[4] = replace(runs[4], measured={"elapsed_s": Measurement(0.0, "s", "")})
    with pytest.raises(InvalidInput, match="run 000000000004 has elapsed_s = 0"):
        data_of(runs)


def test_an_unmeasured_target_error_lists_the_measured_metrics():
    with pytest.raises(InvalidInput, match=r"gpu_memory_bytes was not measured .* measured were elapsed_s"):
        data_of(campaign(10, 0), "gpu_memory_bytes")


def test_too_few_configurations_and_no_completed_run_are_errors():
    with pytest.raises(InvalidInput, match="4 usable runs of 4 configurations"):
        data_of([make_run(n, epochs=n + 1) for n in range(4)])
    with pytest.raises(InvalidInput, match=r"none of the 6 runs of net ended well \(6 FAILED\)"):
        data_of([make_run(n, epochs=n + 1, state=JobState.FAILED) for n in range(6)])
    with pytest.raises(InvalidInput, match="there are no runs"):
        data_of([])


def test_runs_of_two_applications_are_an_error_naming_both():
    with pytest.raises(InvalidInput, match=r"net \(10 runs\), fft \(1 runs\)"):
        data_of([*campaign(10, 0), make_run(77, name="fft")])


def test_completed_runs_without_the_metric_are_counted():
    runs = campaign(10, 0)
    runs[4] = replace(runs[4], measured={})
    data = data_of(runs)
    assert (data.unmeasured, len(data.dataset.samples), data.runs) == (1, 9, 10)
    assert Scale.SCALED_DOWN is data.dataset.samples[0].scale
