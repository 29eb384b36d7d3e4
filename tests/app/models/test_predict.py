"""A trained model is asked for configurations at places: what fits, what it costs, what was never seen, and why."""

import math

import pytest

from leadline.app.composition import toolbox
from leadline.app.models.predict import estimate_with_model, recommend_with_model
from leadline.app.models.question import ModelQuestion, is_model, read_question
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.recommendation import Constraints
from leadline.core.trained_model import Feature, FeatureRole, ModelPredictions
from leadline.core.units import GIB

XEON = "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz"
PARAMETERS = (
    Feature("epochs", FeatureRole.PARAMETER, 1, 100, whole=True),
    Feature("rate", FeatureRole.PARAMETER, 0.1, 0.5),
    Feature("optimizer", FeatureRole.PARAMETER, choices=("adam", "sgd")),
    Feature("layers", FeatureRole.PARAMETER, 4, 4, whole=True, values=(4.0,), used=False),
)
CORES = Feature("cores", FeatureRole.RESOURCE, 1, 16, whole=True, values=(1.0, 3.0, 16.0))
PROCESSOR = Feature("node_cpu", FeatureRole.NODE, choices=(XEON,), used=False)
SET = ("epochs=10", "rate=0.2", "optimizer=adam")


class MadeModel:
    """A model whose walltime is a formula of its rows, with 10 % to either side; memory where it is given."""

    application = "net"
    basis = ("a formula",)
    command = ("python", "net.py", "--epochs", "{epochs}", "--threads", "{cores}")

    def __init__(self, seconds, *, memory=None, features=(*PARAMETERS, CORES, PROCESSOR), factor=1.1):
        self.seconds, self.memory, self.features, self.factor = seconds, memory, features, factor
        self.targets = ("elapsed_s",) if memory is None else ("elapsed_s", "host_memory_bytes")

    def predict(self, target, rows):
        point = [float(self.seconds(row) if target == "elapsed_s" else self.memory) for row in rows]
        return ModelPredictions(
            point, [p / self.factor for p in point], [p * self.factor for p in point], [0.0] * len(point)
        )

    def beyond(self, row):
        far = ["epochs = 1000 is 10 times the largest that was run"] if row.get("epochs", 0) > 100 else []
        return far + (["node_memory_bytes is more than was run"] if row.get("node_memory_bytes", 0) > 2e11 else [])


def per_core(row):
    return 36000 * row["epochs"] / 10 / row.get("cores", 1)


def recommend(model, *given, varied=(), on=("Pitzer:cpu",), **limits):
    question = ModelQuestion("net.npz", given or SET, varied)
    return recommend_with_model(question, model, toolbox(), Constraints(**limits), on=on)


# HARP's Table 1: hours x (cores x $0.003 + GPUs x $0.09) on nodes of 48 cores (Vallabhajosyula and Ramnath, PEARC 2023)
TABLE_1_CORES = (48, 28, 10)
MEASURED_S = {48: 685, 28: 516, 10: 516}
PREDICTED_S = {48: 180, 28: 95, 10: 103}


def table_1(seconds, **limits):
    features = (
        Feature("cores", FeatureRole.RESOURCE, 10, 48, whole=True),
        Feature("gpus", FeatureRole.RESOURCE, 1, 1, whole=True, used=False),
        Feature("node_gpu", FeatureRole.NODE, choices=("Tesla V100-PCIE-32GB",), used=False),
    )
    model = MadeModel(lambda row: seconds[row["cores"]], features=features, factor=1.0)
    model.command = ()
    return recommend(model, "gpus=1", varied=("cores=48,28,10",), on=("Pitzer:gpu-exp",), **limits)


def by_cores(options, figure):
    return {option.parameters["cores"]: figure(option) for option in options}


def test_table_1s_measured_runs_cost_what_it_says():
    costs = by_cores(table_1(MEASURED_S).options, lambda one: round(one.estimate.cost.point, 4))
    assert costs == {48: 0.0445, 28: 0.0249, 10: 0.0172}


def test_table_1s_predictions_cost_what_it_says():
    costs = by_cores(table_1(PREDICTED_S).options, lambda one: round(one.estimate.cost.point, 3))
    assert costs == {48: 0.012, 28: 0.005, 10: 0.003}


def test_under_table_1s_limit_of_120_s_the_cheapest_that_qualifies_is_chosen():
    answer = table_1(PREDICTED_S, deadline_s=120)
    assert [option.parameters["cores"] for option in answer.options] == [10, 28]
    assert [rejection.kind for rejection in answer.rejections] == ["deadline"]
    assert pytest.approx(103 / 3600 * (10 * 0.003 + 0.09)) == answer.options[0].estimate.cost.point


def test_under_table_1s_limit_of_a_cent_the_fastest_is_chosen():
    answer = table_1(PREDICTED_S, budget=0.01)
    assert [option.parameters["cores"] for option in answer.options] == [28, 10]
    assert [rejection.kind for rejection in answer.rejections] == ["budget"]
    assert answer.options[0].estimate.elapsed_s.point == 95.0


def test_resources_left_open_are_tried_as_they_were_run_and_at_the_powers_of_two_between():
    tried = read_question(ModelQuestion("net.npz", SET), MadeModel(per_core).features, free=True)
    assert tried.values["cores"] == (1, 2, 3, 4, 8, 16)
    assert tried.values["layers"] == (4,)


def test_every_configuration_is_an_option_with_its_parameters_request_and_command():
    answer = recommend(MadeModel(per_core, memory=3e9), *SET[1:], varied=("epochs=10,20",), budget=1e6)
    fastest = answer.options[0]
    assert len(answer.options) == 12
    assert fastest.parameters == {"epochs": 10, "rate": 0.2, "optimizer": "adam", "layers": 4, "cores": 16}
    assert fastest.command == ("python", "net.py", "--epochs", "10", "--threads", "16")
    resources = fastest.resources
    assert (resources.cores_per_task, resources.memory_bytes_per_node, resources.walltime_s) == (16, 4 * GIB, 2700)
    assert "cost decides the walltime" in fastest.request_reason


def test_a_place_of_the_runs_own_hardware_keeps_the_interval_and_another_widens_it_with_a_sentence():
    model, places = MadeModel(per_core), ("Pitzer:cpu", "Pitzer:cpu-exp")
    seen, other = (recommend(model, *SET, "cores=4", on=(place,)).options[0] for place in places)
    assert seen.notes == ()
    assert pytest.approx(1.1) == seen.estimate.elapsed_s.high / seen.estimate.elapsed_s.point
    assert other.estimate.elapsed_s.high / other.estimate.elapsed_s.point > math.exp(1.6 * 0.4)
    said = f"no run had its processor (Intel Xeon Platinum 8268), but {XEON}: wider interval"
    assert (said,) == other.notes


def test_a_node_of_a_known_processor_is_marked_for_what_else_no_run_had():
    memory = Feature("node_memory_bytes", FeatureRole.NODE, 1e11, 2e11)
    model = MadeModel(per_core, features=(*PARAMETERS, CORES, PROCESSOR, memory))
    options = recommend(model, *SET, "cores=4").options
    assert options[0].notes == ("node_memory_bytes is more than was run: wider interval",)
    assert pytest.approx(1.1) == options[0].estimate.elapsed_s.high / options[0].estimate.elapsed_s.point


def test_hardware_that_was_measured_comes_before_what_was_not():
    options = recommend(MadeModel(per_core), *SET, "cores=4", on=("Pitzer:cpu-exp", "Pitzer:cpu")).options
    assert [option.partition for option in options] == ["cpu", "cpu-exp"]
    assert all(option.on_front for option in options[:1])


def test_a_model_whose_runs_do_not_say_their_hardware_is_sure_of_none():
    model = MadeModel(per_core, features=(*PARAMETERS, CORES))
    said = "the runs do not say which processor they had: wider intervals"
    assert (said,) == recommend(model).options[0].notes


@pytest.mark.parametrize(
    ("given", "place", "kind"),
    [(("cores=64",), "Pitzer:cpu", "too-few-cores"), (("cores=4",), "Pitzer:gpu", "gpus-unused"),
     (("cores=4", "gpus=1"), "Pitzer:cpu", "no-gpus"), (("cores=4",), "Pitzer:largemem", "cores-unused")],
)  # fmt: skip
def test_a_place_that_cannot_give_what_the_job_uses_is_rejected_with_the_reason(given, place, kind):
    answer = recommend(MadeModel(per_core), *SET, *given, on=(place,))
    assert [kind] == [rejection.kind for rejection in answer.rejections]
    assert answer.options == ()


def test_memory_that_is_fixed_below_what_is_predicted_is_rejected():
    answer = recommend(MadeModel(per_core, memory=8e9), *SET, "cores=4", "memory=4G")
    assert [rejection.kind for rejection in answer.rejections] == ["memory-asked"]
    assert "of memory would make Pitzer:cpu fit" in answer.smallest_change


def test_this_machine_is_a_place_and_free():
    option = recommend(MadeModel(per_core), *SET, "cores=1", on=("local",)).options[0]
    assert (option.system, option.partition, option.estimate.cost.point) == ("local", "", 0.0)


def test_a_parameter_far_outside_the_runs_is_answered_with_a_note():
    answer = recommend(MadeModel(per_core), "epochs=1000", "rate=0.2", "optimizer=sgd", "cores=8", risk=0.2)
    assert answer.notes == ("epochs = 1000 is 10 times the largest that was run: wider interval",)


@pytest.mark.parametrize(
    ("given", "says"),
    [(("epochs=10",), "the model needs rate and optimizer: add --set rate=… --set optimizer=… (rate: runs had 0.1"),
     ((*SET, "width=3"), "unknown parameter of the model 'width'"),
     (("epoch=3",), "did you mean 'epochs'"),
     (("epochs=many",), "epochs must be a number (runs had 1 to 100)"),
     (("epochs=nan",), "epochs must be a number"),
     (("epochs=1.5",), "epochs must be a whole number"),
     (("epochs=0",), "epochs must be at least 1"),
     (("rate=-1",), "rate must be at least 0"),
     (("optimizer=lion",), "unknown value of optimizer 'lion'"),
     (("cores=0",), "cores must be at least 1"),
     (("epochs",), "write NAME=VALUE, as in --set epochs=30"),
     (("node_cpu=x",), "node_cpu belongs to a system"),
     ((*SET, "epochs=3"), "epochs is given twice")],
)  # fmt: skip
def test_a_value_that_cannot_be_is_one_sentence(given, says):
    with pytest.raises(InvalidInput) as error:
        recommend(MadeModel(per_core), *given)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("varied", "says"),
    [("epochs=1,,2", "an empty value"), ("epochs=1,1", "the same value twice"), ("rate", "--vary batch=32,64,128")],
)
def test_values_to_try_that_cannot_be_are_one_sentence(varied, says):
    with pytest.raises(InvalidInput, match=says):
        recommend(MadeModel(per_core), *SET[2:], varied=(varied,))


def test_more_configurations_than_can_be_tried_are_refused():
    epochs = ",".join(map(str, range(1, 2001)))
    rates = ",".join(str(number / 4000) for number in range(1, 60))
    with pytest.raises(InvalidInput, match="are allowed"):
        recommend(MadeModel(per_core), "optimizer=adam", varied=(f"epochs={epochs}", f"rate={rates}"))


def test_a_device_is_no_place_for_a_trained_model_and_an_unknown_system_is_named():
    with pytest.raises(InvalidInput, match="is a device"):
        recommend(MadeModel(per_core), on=("V100 SXM2 32GB",))
    with pytest.raises(UnknownName, match="did you mean 'Pitzer'"):
        recommend(MadeModel(per_core), on=("Pitzr",))


def test_a_model_without_a_time_cannot_recommend():
    model = MadeModel(per_core, memory=1e9)
    model.targets = ("host_memory_bytes",)
    with pytest.raises(InvalidInput, match="but not elapsed_s"):
        recommend(model)


def test_an_estimate_needs_no_place_where_all_runs_had_the_same_hardware():
    answer = estimate_with_model(ModelQuestion("net.npz", (*SET, "cores=4")), MadeModel(per_core), toolbox())
    assert tuple(estimate.elapsed_s.point for estimate in answer.estimates) == (9000.0,)
    assert answer.estimates[0].target.device == XEON
    assert "--on" in answer.estimates[0].unknown["cost"]


def test_an_estimate_of_a_model_of_several_kinds_of_hardware_asks_for_the_place():
    both = Feature("node_cpu", FeatureRole.NODE, choices=(XEON, "AMD EPYC 7742 64-Core Processor"))
    model = MadeModel(per_core, features=(*PARAMETERS, CORES, both))
    question = ModelQuestion("net.npz", (*SET, "cores=4"))
    with pytest.raises(InvalidInput, match="several kinds of hardware"):
        estimate_with_model(question, model, toolbox())
    answer = estimate_with_model(question, model, toolbox(), on=("Expanse:shared",))
    assert answer.estimates[0].currency == "Expanse CPU SU"


def test_an_estimate_is_made_of_each_value_to_try_and_says_which_a_place_cannot_take():
    question = ModelQuestion("net.npz", SET, ("cores=4,64",))
    answer = estimate_with_model(question, MadeModel(per_core), toolbox(), on=("Pitzer:cpu",))
    assert [parameter["cores"] for parameter in answer.parameters] == [4]
    assert answer.left_out == ("Pitzer:cpu has 40 cores a node, and the job uses 64 on one node",)


def test_a_file_is_known_for_a_model_by_how_it_begins_or_ends(tmp_path):
    (tmp_path / "renamed").write_bytes(b"PK\x03\x04rest")
    assert is_model(str(tmp_path / "renamed"))
    assert is_model("not-there.npz")
    assert not is_model("config.json")
