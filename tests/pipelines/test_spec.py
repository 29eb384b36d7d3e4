"""The pipeline file: what it may say, and one sentence for each fault."""

from pathlib import Path

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.pipelines import CountSource, MetricSource, MqttSource
from leadline.pipelines.spec import read_pipeline

pytest.importorskip("croniter")

STATION = """
[pipeline]
name = "station"
folder = "season"

[tiers.edge]
device = "Jetson Nano"
cores = 1
memory = "1 GiB"
[tiers.cloud]
price = "0.40 USD/h"
folder = "scratch/station"

[events.images]
mqtt = { broker = "localhost:1884", topic = "traps/+/images" }
[events.uploads]
files = "incoming/*.jpg"
[events.nightly]
schedule = "0 2 * * *"
[events.drifted]
metric = { stage = "label", name = "drift", above = 0.5 }
[events.enough]
count = { of = "label.labels", reaches = 500 }

[stages.retrain]
command = "python {home}/train.py"
on = ["drifted", "enough", "nightly"]
tier = ["cloud", "edge"]
deadline = "10 min"
budget = "2 USD"
reads = ["labels"]
writes = ["models"]
[stages.label]
command = "python label.py"
on = ["images", "uploads"]
batch = { most = 250, wait = "10 s" }
tier = "edge"
running = 2
waiting = 2000
[stages.roll-out]
command = "python roll_out.py"
on = "retrain"
"""


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "station.toml"
        path.write_text(text)
        return read_pipeline(path)

    return read_text


def test_a_file_becomes_tiers_events_and_stages(read, tmp_path):
    pipeline = read(STATION)
    assert (pipeline.name, pipeline.folder) == ("station", str(tmp_path / "season"))
    assert pipeline.tiers["edge"].memory_bytes == 2**30
    assert pipeline.tiers["cloud"].usd_per_h == 0.4
    assert pipeline.events["images"] == MqttSource("localhost", 1884, "traps/+/images")
    assert pipeline.events["drifted"] == MetricSource("label", "drift", 0.5, above=True)
    assert pipeline.events["enough"] == CountSource("label", "labels", 500)
    label, retrain = pipeline.stages["label"], pipeline.stages["retrain"]
    assert (label.most, label.wait_s, label.running, label.waiting) == (250, 10.0, 2, 2000)
    assert (retrain.deadline_s, retrain.budget_usd, retrain.reads) == (600.0, 2.0, ("labels",))
    assert (retrain.writes, label.writes, pipeline.tiers["cloud"].folder) == (("models",), (), "scratch/station")
    assert retrain.command_in("/there") == ("python", "/there/train.py")
    assert pipeline.stages["roll-out"].tiers == ("edge", "cloud")


def test_stages_come_after_those_that_start_them(read):
    assert [*read(STATION).stages] == ["label", "retrain", "roll-out"]


def test_without_tiers_everything_runs_here(read):
    pipeline = read('[events.a]\nfiles = "*.csv"\n[stages.b]\ncommand = "true"\non = "a"\n')
    assert pipeline.stages["b"].tiers == ("here",)
    assert pipeline.folder == str(Path(pipeline.home))


FAULTS = [
    ('on = "retrain"', 'on = "retrian"', "in on of stage 'roll-out': 'retrian': did you mean 'retrain'?"),
    ('tier = "edge"', 'tier = "egde"', "unknown tier of stage 'label': 'egde': did you mean 'edge'?"),
    ('stage = "label", name', 'stage = "labl", name', "unknown stage in the metric of event 'drifted': 'labl'"),
    ('of = "label.labels"', 'of = "labels.labels"', "unknown event or stage in the count of event 'enough': 'labels'"),
    (", above = 0.5", "", "needs exactly one line"),
    ("above = 0.5", "above = 0.5, below = 0.1", "needs exactly one line"),
    ("reaches = 500", "reaches = 0", "reaches of event 'enough' is 0, but it must be more than 0"),
    ('on = ["images", "uploads"]', 'on = ["images"]', "event 'uploads' starts no stage"),
    ('on = ["images", "uploads"]', "on = []", "stage 'label' starts on nothing"),
    ('files = "incoming/*.jpg"', "", "event 'uploads' has no source"),
    ('files = "incoming/*.jpg"', 'files = "a"\nschedule = "0 2 * * *"', "event 'uploads' has files and schedule"),
    ('files = "incoming/*.jpg"', 'files = "../incoming/*.jpg"', "it must lie in the pipeline's folder"),
    ("0 2 * * *", "at two", "is 'at two', which is no cron expression"),
    ("traps/+/images", "traps/+x/images", "a wildcard is a whole level"),
    ("localhost:1884", "localhost:mqtt", "write a host and a port"),
    ('command = "python label.py"', "", "stage 'label' has nothing to run"),
    ('command = "python label.py"', 'command = "python \'label.py"', "close its quotes"),
    ("running = 2", "running = 0", "running of stage 'label' is 0, but it must be at least 1"),
    ("waiting = 2000", "waiting = 20", "takes 250 events in a run, but only 20 may wait"),
    ('wait = "10 s"', 'wait = "10"', "batch.wait of stage 'label': '10' has no unit"),
    ('deadline = "10 min"', 'deadline = "soon"', "deadline of stage 'retrain': 'soon' is not a duration"),
    ('budget = "2 USD"', 'budget = "2 EUR"', "budget of stage 'retrain' is '2 EUR', which is no amount in US dollars"),
    ('price = "0.40 USD/h"', 'price = "0.40 USD"', "price of tier 'cloud' is '0.40 USD'"),
    ('memory = "1 GiB"', 'memory = "much"', "memory of tier 'edge': 'much' is not a size"),
    ('writes = ["models"]', 'writes = ["../models"]', "writes of stage 'retrain' is '../models', but it must lie in"),
    ('writes = ["models"]', 'writes = "/models"', "writes of stage 'retrain' is '/models', but it must lie in"),
    ('writes = ["models"]', 'writes = "./"', "writes of stage 'retrain' is './', all data of the pipeline: name"),
    ('folder = "scratch/station"', 'folder = "../other"', "folder of tier 'cloud' is '../other': give a path relative"),
    ('folder = "scratch/station"', 'folder = "~/data"', "folder of tier 'cloud' is '~/data': give a path relative"),
    ('folder = "scratch/station"', 'folder = ""', "folder of tier 'cloud' is '': give a path relative"),
    ("[stages.roll-out]", "[stages.images]", "'images' names an event and a stage"),
    ("[stages.roll-out]", '[stages."roll/out"]', "the stage name 'roll/out' cannot name files and jobs"),
    ("running = 2", "runing = 2", "runing"),
    ('"enough", "nightly"]', '"enough", "nightly", "roll-out"]', "in a circle, without an end: "),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), FAULTS, ids=[reason[:40] for *_, reason in FAULTS])
def test_a_fault_is_one_sentence_with_its_place(read, old, new, reason):
    assert STATION.count(old) == 1
    with pytest.raises(InvalidInput) as raised:
        read(STATION.replace(old, new))
    message = str(raised.value)
    assert reason in message
    assert "station.toml" in message
    assert "\n" not in message


@pytest.mark.parametrize("minutes", ["10 min", "10min", "10m", "600 s"])
def test_minutes_may_be_written_as_people_do(read, minutes):
    assert read(STATION.replace("10 min", minutes)).stages["retrain"].deadline_s == 600.0
