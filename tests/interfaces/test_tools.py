"""The tools take flat arguments, check them, and answer with the documents that the command line prints."""

import json

import jsonschema
import pytest

from leadline.core.errors import InvalidInput, UnknownName
from leadline.interfaces.json_schemas import json_schema
from leadline.interfaces.tools import tools

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1376,
    "num_attention_heads": 8, "num_hidden_layers": 4, "vocab_size": 32000, "torch_dtype": "bfloat16",
}  # fmt: skip
READING = {
    "estimate": [
        {"workload": "config.json", "on": ["A100 SXM4 80GB"]},
        {"workload": "config.json", "on": ["T4", "L4"]},
    ],
    "fit": [{"workload": "config.json", "on": ["T4"], "batch": 4}],
    "recommend": [{"workload": "config.json", "steps": 1000, "deadline_s": 86400.0, "budget": 100.0}],
    "systems": [{}, {"name": "pitzer"}],
    "devices": [{}, {"name": "T4"}],
    "jobs": [{}, {"all": True, "limit": 3}],
    "history": [{}, {"limit": 3}],
    "models": [{}],
    "campaigns": [{}],
    "pipelines": [{}],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


@pytest.mark.parametrize(("name", "arguments"), [(name, each) for name, all_ in READING.items() for each in all_])
def test_a_tool_answers_with_one_of_its_documents(folder, name, arguments):
    tool = tools(folder)[name]
    document = json.loads(json.dumps(tool.call(arguments), default=str))
    assert document["schema"] in tool.documents
    jsonschema.Draft202012Validator(json_schema(document["schema"])).validate(document)


@pytest.mark.parametrize("name", list(tools.__wrapped__(None)))
def test_the_arguments_of_a_tool_have_a_valid_schema_with_a_description_each(folder, name):
    schema = tools(folder)[name].schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not schema["additionalProperties"]
    assert all(argument["description"].endswith(".") for argument in schema["properties"].values())


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("estimate", {}, "workload"),
        ("estimate", {"workload": "config.json", "batch": 0}, "batch: expected `int` >= 1"),
        ("estimate", {"workload": "config.json", "gpu": 1}, "unknown field `gpu`"),
        ("estimate", {"workload": ["config.json"]}, "workload: expected `str`"),
        ("fit", {"workload": "config.json"}, "on is missing"),
        ("recommend", {"workload": "config.json", "risk": 2}, "risk: expected `float` < 1"),
        ("recommend", {"workload": "config.json", "deadline_s": 1e15}, "deadline_s: expected `float` <= 1"),
        ("recommend", {"workload": "config.json", "deadline_s": 1e-9}, "--deadline"),
        ("recommend", {"workload": "config.json", "risk": 5e-324}, "--risk"),
        ("fit", {"workload": "config.json", "on": ["T4"], "risk": 5e-324}, "--risk"),
        ("logs", {"job": "x", "lines": 10**6}, "lines: expected `int` <= 10000"),
        ("submit", {"command": []}, "command: expected `array` of length >= 1"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(folder, name, arguments, words):
    with pytest.raises(InvalidInput) as raised:
        tools(folder)[name].call(arguments)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "workload",
    ["/etc/passwd", "../config.json", "link.json", "a\0b", "~/config.json", "x" * 300, "x/" * 2000, "x" * 5000],
)
def test_a_workload_outside_the_folder_is_refused(folder, workload):
    (folder / "link.json").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput):
        tools(folder)["estimate"].call({"workload": workload})


@pytest.fixture
def outside(tmp_path_factory):
    """A folder that is not served."""
    elsewhere = tmp_path_factory.mktemp("outside")
    (elsewhere / "config.json").write_text(json.dumps(LLAMA))
    (elsewhere / "model.py").write_text("def build(): ...")
    (elsewhere / "secret").write_text("root:x:0:0\n")
    return elsewhere


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('model = "OUTSIDE/config.json"', "lies outside"),
        ('model = "OUTSIDE"', "lies outside"),
        ('model = "link"', "lies outside"),
        ('model = "config.json"\nlengths = "OUTSIDE/secret"', "lies outside"),
        ('model = "OUTSIDE/model.py:build"\ninput = "8x4"', "not allowed here"),
        ('command = "python OUTSIDE/model.py"', "not allowed here"),
        ('command = "python -m model"', "not allowed here"),
    ],
)
def test_a_workload_file_names_nothing_that_may_not_be_named_directly(folder, outside, content, words):
    (folder / "link").mkdir()
    (folder / "link" / "config.json").symlink_to(outside / "config.json")
    (folder / "job.toml").write_text(content.replace("OUTSIDE", str(outside)))
    with pytest.raises(InvalidInput, match=words) as raised:
        tools(folder)["estimate"].call({"workload": "job.toml", "on": ["T4"]})
    assert "root:x" not in str(raised.value)


def test_a_folder_with_a_link_to_a_configuration_outside_is_refused(folder, outside):
    (folder / "link").mkdir()
    (folder / "link" / "config.json").symlink_to(outside / "config.json")
    with pytest.raises(InvalidInput, match="lies outside"):
        tools(folder)["estimate"].call({"workload": "link", "on": ["T4"]})


@pytest.mark.parametrize("content", ['model = "OUTSIDE/model.py:build"', 'command = "python OUTSIDE/model.py"'])
def test_a_workload_file_runs_no_script_outside_even_where_scripts_are_allowed(folder, outside, content):
    (folder / "job.toml").write_text(content.replace("OUTSIDE", str(outside)))
    with pytest.raises(InvalidInput, match="lies outside"):
        tools(folder, scripts=True)["estimate"].call({"workload": "job.toml", "on": ["T4"]})


def test_a_workload_file_names_a_model_beside_it(folder):
    (folder / "jobs").mkdir()
    (folder / "jobs" / "job.toml").write_text('model = "../config.json"\nbatch = 2')
    document = tools(folder)["estimate"].call({"workload": "jobs/job.toml", "on": ["T4"]})
    assert document["schema"] == "leadline.estimate/1"


def test_a_script_is_traced_only_where_scripts_are_allowed(folder):
    (folder / "train.py").write_text("raise SystemExit('ran')")
    with pytest.raises(InvalidInput, match="not allowed here"):
        tools(folder)["estimate"].call({"workload": "train.py"})


def test_a_model_in_the_hugging_face_cache_is_found_by_its_name(folder, monkeypatch):
    snapshot = folder / "hub" / "models--some--llama" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setenv("HF_HOME", str(folder))
    document = tools(folder / "hub")["estimate"].call({"workload": "some/llama", "on": ["T4"]})
    assert document["schema"] == "leadline.estimate/1"


def test_a_job_that_is_not_there_is_named(folder):
    for name in ("logs", "explain"):
        with pytest.raises(UnknownName, match="nosuch"):
            tools(folder)[name].call({"job": "nosuch"})
