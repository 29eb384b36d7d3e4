"""A campaign's file is read whole, and each mistake in it is one sentence."""

from pathlib import Path

import pytest

from leadline.campaigns.configurations import build_job
from leadline.campaigns.spec import read_campaign
from leadline.core.campaigns import Budget, BudgetUnit, Configuration, Design, ParameterKind, PlannedRun, Range
from leadline.core.errors import InvalidInput
from leadline.core.jobs import ResourceSpec
from leadline.core.runs import Scale

GOOD = """\
name = "fc-classifier"
command = "python train.py --dataset {dataset} --epochs {epochs} --width {width} --threads {cores}"
budget = "20m"
limit = "10m"
first_run = "2s"
[parameters.dataset]
choices = ["mnist", "cifar10"]
[parameters.epochs]
kind = "integer"
scaled_down = [1, 3]
full_scale = [10, 60]
[parameters.width]
kind = "log-integer"
range = [64, 1024]
[resources]
cores = [1, 2]
memory = "2GiB"
[job]
setup = ["module load python", "export NAME={dataset}"]
environment = { OMP_NUM_THREADS = "{cores}", MEMORY = "{memory_mib}" }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "campaign.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_campaign_file_has_parameters_resources_and_budget(tmp_path):
    campaign = read_campaign(written(tmp_path, GOOD))
    assert campaign.name == "fc-classifier"
    assert Budget(1200, BudgetUnit.SECONDS) == campaign.budget
    assert (campaign.walltime_s, campaign.first_run_s) == (600.0, 2.0)
    assert (campaign.cores, campaign.memory_bytes, campaign.gpus) == ((1, 2), (2 * 2**30,), (0,))
    assert Design.ADAPTIVE is campaign.design
    assert str(tmp_path) == campaign.workdir
    dataset, epochs, width = campaign.parameters
    assert dataset.choices == ("mnist", "cifar10")
    assert (Range(1, 3), Range(10, 60), True) == (epochs.scaled_down, epochs.full_scale, epochs.carries_scale)
    assert (ParameterKind.LOG_INTEGER, Range(64, 1024), False) == (width.kind, width.full_scale, width.carries_scale)


def test_choices_are_text_even_if_they_look_like_numbers(tmp_path):
    campaign = read_campaign(written(tmp_path, GOOD.replace('["mnist", "cifar10"]', "[2, 3.5]")))
    assert campaign.parameters[0].choices == ("2", "3.5")
    with pytest.raises(InvalidInput, match="name '2' 2 times"):
        read_campaign(written(tmp_path, GOOD.replace('["mnist", "cifar10"]', '[2, "2"]')))


def test_a_job_has_all_placeholders_filled_and_the_campaigns_limit(tmp_path):
    campaign = read_campaign(written(tmp_path, GOOD + "[prices]\ncore_hour = 0.003\n"))
    resources = ResourceSpec(cores_per_task=2, memory_bytes_per_node=2 * 2**30)
    one = Configuration({"dataset": "my data", "epochs": 3, "width": 64}, resources)
    job = build_job(campaign, PlannedRun(campaign.name, one, Scale.SCALED_DOWN))
    assert job.command == (
        "python",
        "train.py",
        "--dataset",
        "my data",
        "--epochs",
        "3",
        "--width",
        "64",
        "--threads",
        "2",
    )
    assert job.environment == {"OMP_NUM_THREADS": "2", "MEMORY": "2048"}
    assert job.setup == ("module load python", "export NAME='my data'")
    assert (job.name, job.resources.walltime_s, job.resources.cores_per_task) == ("fc-classifier", 600.0, 2)


def test_doubled_braces_are_literal_and_a_list_is_not_split(tmp_path):
    command = """command = ["awk", "{{print}} {n}", "a b"]\n[parameters.n]\nscaled_down = 1\nfull_scale = [10, 20]\n"""
    campaign = read_campaign(written(tmp_path, command))
    one = PlannedRun(campaign.name, Configuration({"n": 1}, ResourceSpec()), Scale.SCALED_DOWN)
    assert build_job(campaign, one).command == ("awk", "{print} 1", "a b")
    assert (campaign.name, campaign.parameters[0].kind) == ("campaign", ParameterKind.INTEGER)


def test_explicit_values_define_the_range_and_must_lie_in_it(tmp_path):
    text = GOOD.replace("range = [64, 1024]", "values = [64, 256, 128]")
    assert read_campaign(written(tmp_path, text)).parameters[2].values == (64, 128, 256)
    assert Range(64, 256) == read_campaign(written(tmp_path, text)).parameters[2].full_scale
    with pytest.raises(InvalidInput, match=r"none of the values of width lies in full_scale = \[512, 600\]"):
        read_campaign(written(tmp_path, text.replace("values =", "full_scale = [512, 600]\nvalues =")))


@pytest.mark.parametrize(
    ("said", "amount", "unit"),
    [
        ('"20m"', 1200, BudgetUnit.SECONDS),
        ('"3 core-hours"', 3, BudgetUnit.CORE_HOURS),
        ('"1 core-hour"', 1, BudgetUnit.CORE_HOURS),
        ('"2.50 USD"', 2.5, BudgetUnit.USD),
        ('"$2.50"', 2.5, BudgetUnit.USD),
    ],
)
def test_a_budget_is_time_core_hours_or_dollars(tmp_path, said, amount, unit):
    text = GOOD.replace('"20m"', said) + "[prices]\ncore_hour = 0.003\n"
    assert Budget(amount, unit) == read_campaign(written(tmp_path, text)).budget


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{epochs}", "{epoch}", "the command has {epoch}, but there is no [parameters.epoch]: add it"),
        (" --width {width}", "", "the command never uses the parameter width: write {width} where"),
        ("[1, 3]", "[3, 1]", "scaled_down of epochs is [3, 1], which runs backwards: write [1, 3]"),
        ("[1, 3]", "[]", "scaled_down of epochs is [], but a range has two ends"),
        ("[1, 3]", "[1, 2, 3]", "scaled_down of epochs is [1, 2, 3], but a range has two ends"),
        ("[1, 3]", "[1, 2.5]", "the parameter epochs is integer, but 2.5 is not whole"),
        ("[1, 3]", "[nan, 3]", "the parameter epochs has the value nan: give a finite number"),
        ("range = [64, 1024]", "range = [0, 1024]", "the parameter width is log-integer, but 0 has no logarithm"),
        ('kind = "integer"', 'kind = "intger"', "line 9: kind is 'intger'"),
        ("full_scale = [10, 60]", "full_scale = [1, 3]", "no parameter carries scale: give the one"),
        ("full_scale = [10, 60]\n", "", "the parameter epochs has no values for full_scale: add full_scale"),
        ("full_scale", "fullscale", "line 11: there is no key 'fullscale' in 'epochs': did you mean 'full_scale'?"),
        ('"20m"', '"2.50 USD"', "the budget is in US dollars, but [prices] has no core_hour: add what one costs"),
        ('"20m"', '"20 minutes hours"', "the budget is '20 minutes hours', which is no amount of one unit: write"),
        ('"20m"', '"3 GPU-hours"', "the budget is '3 GPU-hours', but GPU-hours are no budget"),
        ('"20m"', "1200", "the budget is '1200', which is no amount of one unit: write"),
        ('"20m"', '"0s"', "the budget is 0s, but it must be more than 0"),
        ('"10m"', "600", "limit: '600' has no unit: write 600h, 600m or 600s"),
        ('"2s"', "2", "first_run: '2' has no unit: write 2h, 2m or 2s"),
        ('"2GiB"', "2", "memory: '2' has no unit: write 2GiB, 2MiB or 2B"),
        ('"10m"', '"0s"', "limit is 0s, but it must be more than 0"),
        ('"10m"', '"soon"', "limit: 'soon' is not a duration"),
        ('["mnist", "cifar10"]', '["mnist", "mnist"]', "the choices of dataset name 'mnist' 2 times: keep it once"),
        ('["mnist", "cifar10"]', "[]", "the choices of dataset are empty: name at least one"),
        ("[1, 2]", "[1, 1]", "the cores name 1 2 times: keep it once"),
        ("[1, 2]", "[0, 1]", "cores is 0, but it must be at least 1"),
        ('"2GiB"', '"2 bananas"', "'2 bananas' is not a size"),
        ('memory = "2GiB"\n', "", "the command has {memory_mib}, but [resources] has no memory"),
        ("[parameters.width]", "[parameters.gpus]", "the parameter gpus has the name of a resource"),
        ("[parameters.width]", '[parameters."net width"]', "the parameter 'net width' cannot stand in braces"),
        ('"fc-classifier"', '"../classifier"', "the name '../classifier' cannot name a folder and a job"),
        ("python train.py", "python 'train.py", "cannot be split into words"),
        ("[job]", '[job]\nworkdir = "nowhere"', "workdir is 'nowhere', but there is no folder"),
        ("[job]", "[prices]\ncore_hour = -1\n[job]", "core_hour is -1, but a price is 0 or more US dollars"),
        ('limit = "10m"', "repeats = 0", "repeats is 0, but it must be at least 1"),
        ('limit = "10m"', "limit = [", "is not valid TOML"),
        ("range = [64, 1024]", "range = [64, 1024]\nscaled_down = [64, 128]", "has a range for both scales and one"),
        ("range = [64, 1024]", 'range = [64, 1024]\nchoices = ["a"]', "is log-integer, but has choices"),
    ],
)
def test_an_error_has_the_file_the_value_and_the_fix(tmp_path, old, new, says):
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(InvalidInput) as caught:
        read_campaign(path)
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(InvalidInput, match=r"none\.toml cannot be read: No such file or directory; check the path"):
        read_campaign(tmp_path / "none.toml")
