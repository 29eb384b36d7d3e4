"""Answers as files of other tools."""

import ast
import csv
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from leadline.app.composition import user_catalog
from leadline.core.errors import InvalidInput
from leadline.core.systems import Limits, NodeType, Partition, SubmitRules, System
from leadline.core.units import GIB, HOUR_S
from leadline.interfaces import documents
from leadline.interfaces.cli.main import main
from leadline.interfaces.exports import snippets
from leadline.interfaces.exports.ondemand import write_app
from leadline.interfaces.exports.quoting import groovy_string, yaml_string
from leadline.interfaces.exports.tables import MAIN_LISTS, rows_of, write_table
from leadline.interfaces.json_schemas import DOCUMENTS, LISTS, PLAIN
from leadline.interfaces.tools import tools
from tests.interfaces.test_tools import LLAMA

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

ODD_COMMAND = ("python", "-c", "print('a {b} $c \"d\" ``')\nprint('#: \\\\ ''' e')", "\x07é😀")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def recommendation(folder):
    return tools(folder)["recommend"].call({"workload": "config.json", "on": ["Ascend"], "steps": 1000})


def read_csv(file):
    return list(csv.DictReader(io.StringIO(file.read_text())))


def request(command=ODD_COMMAND, *, account="", memory_gib=3, hours=2.0, gpus=2, nodes=2, **rules):
    """Return a request of a partition with known limits."""
    limits = Limits(max_walltime_s=6 * HOUR_S)
    node = NodeType("fat", cores=64, usable_memory_bytes=8 * GIB, device="T4", gpus=4)
    partition = Partition("gpu", node, limits=limits, **rules)
    resources = {
        "nodes": nodes, "tasks_per_node": 1, "cores_per_task": 8, "gpus_per_node": gpus,
        "memory_bytes_per_node": memory_gib * GIB, "walltime_s": hours * HOUR_S,
    }  # fmt: skip
    option = {"partition": "gpu", "device": "A100 SXM4 80GB", "resources": resources}
    return snippets.build_request(option, System("Site", "s", "hpc", "ok", "slurm", (partition,)), command, account)


def test_a_table_has_a_row_for_each_item_and_a_column_for_each_part_of_an_interval(folder, recommendation):
    document = json.loads(json.dumps(recommendation, default=str))
    assert write_table(document, folder / "t.csv") == len(document["options"])
    first = read_csv(folder / "t.csv")[0]
    assert first["system"] == "Ascend"
    assert float(first["estimate.elapsed_s.low"]) <= float(first["estimate.elapsed_s.high"])


def test_a_parquet_file_has_the_same_values(folder, recommendation):
    parquet = pytest.importorskip("pyarrow.parquet")
    document = json.loads(json.dumps(recommendation, default=str))
    write_table(document, folder / "t.parquet")
    read = parquet.read_table(folder / "t.parquet").to_pylist()
    assert [row["estimate.elapsed_s.point"] for row in read] == [
        option["estimate"]["elapsed_s"]["point"] for option in document["options"]
    ]


def test_text_that_a_spreadsheet_would_run_is_harmless(tmp_path):
    write_table({"schema": "x", "name": "=1+cmd|' /C calc'!A0", "n": -3}, tmp_path / "t.csv")
    assert read_csv(tmp_path / "t.csv")[0] == {"schema": "x", "name": "'=1+cmd|' /C calc'!A0", "n": "-3"}


def test_a_column_of_several_kinds_is_text(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    document = {"schema": "leadline.jobs/1", "jobs": [{"a": 1}, {"a": "x"}, {"a": None}, {"b": 1}, {"b": 2.5}]}
    assert len(rows_of(document)) == 5
    write_table(document, tmp_path / "t.parquet")
    table = parquet.read_table(tmp_path / "t.parquet")
    assert table.column("a").to_pylist() == ["1", "x", None, None, None]
    assert table.column("b").to_pylist() == [None, None, None, 1.0, 2.5]


def evaluated(text, name, attempt):
    """Return what the function of a Snakemake resource gives for an attempt."""
    source = re.search(rf"{name}=(lambda wildcards, attempt: .*),\n", text)[1]
    return eval(source)(None, attempt=attempt)  # noqa: S307 - our own text


def test_retries_ask_for_more_up_to_the_limits_of_the_partition():
    attempts = request().attempts
    assert attempts == ((3072, 120), (4608, 180), (6912, 270), (8192, 360))
    assert request().limits == "Retries stop at its limits of 8,192 MiB a node and 360 minutes."


def test_a_retry_that_would_ask_for_no_more_is_left_out():
    assert len(request(memory_gib=8, hours=6).attempts) == 1
    assert request(memory_gib=8, hours=5).attempts == ((8192, 300), (8192, 360))
    assert request(hours=5, rules=SubmitRules(whole_nodes=True)).attempts == ((3072, 300), (3072, 360))
    for form in snippets.FORMS.values():
        assert "[8192, 8192]" not in form(request(memory_gib=8, hours=6))


def test_an_unknown_limit_is_said():
    system = replace(user_catalog().system("Ascend"), partitions=(Partition("gpu", NodeType("n")),))
    resources = {"nodes": 1, "tasks_per_node": 1, "cores_per_task": 1, "gpus_per_node": 0,
                 "memory_bytes_per_node": GIB, "walltime_s": 60.0}  # fmt: skip
    option = {"partition": "gpu", "device": None, "resources": resources}
    text = snippets.snakemake(snippets.build_request(option, system, ["true"]))
    assert "# Ascend:gpu. Its limits of memory and time are unknown: a retry may exceed them.\n" in text


@pytest.mark.parametrize(
    ("rules", "has", "lacks"),
    [
        ({"queue": "batch-a"}, ["batch-a"], ["'gpu'"]), ({"queue": ""}, [], ["partition=", "queue "]),
        ({"rules": SubmitRules(qos="normal", constraint="a100&[v1|v2]")}, ["normal", "a100&[v1|v2]"], []),
        ({"rules": SubmitRules(whole_nodes=True)}, [], ["mem_mb", "memory {", "slurm_mem"]),
        ({"rules": SubmitRules(rejects=("--mem",))}, [], ["mem_mb", "memory {", "slurm_mem"]),
        ({"rules": SubmitRules(gpu_option=None)}, [], ["gres", "gpus"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["snakemake", "nextflow", "submitit"])
def test_a_snippet_follows_the_rules_of_the_site(form, rules, has, lacks):
    text = snippets.FORMS[form](request(("true",), **rules))
    assert all(words in text for words in has)
    assert not any(words in text for words in lacks)


@pytest.mark.parametrize(
    ("gpu_option", "gres", "total"),
    [("--gpus-per-node={gpus}", "gpu:2", "--gpus-per-node=2"), ("--gres=gpu:{gpus}", "gpu:2", "--gres=gpu:2"),
     ("--gpus=v100-32:{total}", "gpu:v100-32:2", "--gpus=v100-32:4"), ("--gpus={total}", "gpu:2", "--gpus=4")],
)  # fmt: skip
def test_gpus_are_asked_as_the_site_wants(gpu_option, gres, total):
    asked = request(rules=SubmitRules(gpu_option=gpu_option))
    # Snakemake's plugin accepts no hyphen in a gres.
    rule_has = f"gres={gres!r}," if "-" not in gres else f"slurm_extra='--gpus-per-node={gres.removeprefix('gpu:')}'"
    assert rule_has in snippets.snakemake(asked)
    assert total in snippets.nextflow(asked)
    name, _, value = total.lstrip("-").partition("=")
    assert f"{name.replace('-', '_')!r}: {value!r}" in snippets.submitit(asked)


def test_an_account_that_a_site_demands_must_be_named():
    demanding = SubmitRules(requires=("--account",))
    with pytest.raises(InvalidInput, match=r"Site:gpu accepts no job without an account: .* --account"):
        request(rules=demanding)
    texts = [form(request(account="p-1", rules=demanding)) for form in snippets.FORMS.values()]
    assert ["p-1" in text for text in texts] == [True, True, True, False]


@pytest.mark.parametrize("name", ["a b", "a'b", 'a"b', "a\nb", "a;b", "a$b", "a`b", "a\\b"])
def test_a_name_that_no_script_can_hold_is_refused(name):
    for options in ({"account": name}, {"queue": name}, {"rules": SubmitRules(qos=name)}):
        with pytest.raises(InvalidInput, match="cannot be asked of Site:gpu"):
            request(**options)


def test_snakemake_gets_a_rule_whose_parts_are_python():
    text = snippets.snakemake(request(queue="a&[b]", account="p.1"))
    assert [evaluated(text, "mem_mb", attempt) for attempt in (1, 2, 4, 9)] == [3072, 4608, 8192, 8192]
    assert evaluated(text, "runtime", 2) == 180
    resources = text.partition("    resources:\n")[2].partition("    shell:\n")[0]
    call = ast.parse(f"dict({resources})").body[0].value
    values = {keyword.arg: keyword.value for keyword in call.keywords}
    assert ast.literal_eval(values["slurm_partition"]) == "a&[b]"
    assert ast.literal_eval(values["slurm_account"]) == "p.1"
    shell = ast.literal_eval(text.partition("    shell:\n")[2].strip())
    assert tuple(shlex.split(shell.format())) == ODD_COMMAND


@pytest.mark.parametrize(
    ("gpus", "tasks", "has"),
    [(2, 1, ["tasks_per_gpu=-1"]), (2, 2, ["tasks_per_gpu=-1", "slurm_extra='--ntasks-per-node=2'"]),
     (0, 2, ["tasks=4"])],
)  # fmt: skip
def test_snakemake_asks_for_as_many_tasks_as_were_recommended(gpus, tasks, has):
    # The plugin takes "tasks" beside a gres as tasks on every GPU.
    text = snippets.snakemake(replace(request(gpus=gpus), tasks_per_node=tasks))
    assert all(f"        {words},\n" in text for words in has)
    assert ("tasks=" in text.replace("slurm_extra", "")) == (not gpus)
    assert "--jobs 1" in text, "no job starts on a cluster without a number of jobs"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("snakemake") is None, reason="needs snakemake")
def test_snakemake_takes_the_rule(folder):
    (folder / "Snakefile").write_text(snippets.snakemake(request()))
    done = subprocess.run(["snakemake", "--lint"], cwd=folder, capture_output=True, text=True, check=False)
    assert "SyntaxError" not in done.stderr


class Executor:
    """Stands in for submitit's cluster: jobs end with the states that a test wrote."""

    states = ()

    def __init__(self, folder):
        self.folder, self.asked = folder, []

    def update_parameters(self, **parameters):
        self.asked.append(parameters)

    def submit(self, command):
        return SubmittedJob(Executor.states[len(self.asked) - 1], command)


class UncompletedJobError(Exception):
    pass


class SubmittedJob:
    def __init__(self, state, command):
        (self.state, _, self.says), self.command = state.partition(": "), command

    def result(self):
        if self.state != "COMPLETED":
            raise UncompletedJobError(self.says or self.state)
        return self.command


@pytest.mark.parametrize(
    ("states", "attempts", "raises"),
    [
        (["COMPLETED"], 1, False), (["OUT_OF_MEMORY", "TIMEOUT", "COMPLETED"], 3, False), (["FAILED"], 1, True),
        (["OUT_OF_MEMORY"] * 4, 4, True),
        (["FAILED: Job not requeued because: timed-out and not checkpointable.", "COMPLETED"], 2, False),
    ],
)  # fmt: skip
def test_submitit_tries_again_after_a_limit_and_raises_in_the_end(monkeypatch, capsys, states, attempts, raises):
    submitit = ModuleType("submitit")
    submitit.AutoExecutor = Executor
    submitit.helpers = SimpleNamespace(CommandFunction=tuple)
    submitit.core = SimpleNamespace(utils=SimpleNamespace(UncompletedJobError=UncompletedJobError))
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    monkeypatch.setattr(Executor, "states", states)
    names = {}
    with pytest.raises(UncompletedJobError) if raises else nullcontext():
        exec(compile(snippets.submitit(request(queue="a&[b]")), "submit.py", "exec"), names)  # noqa: S102 - our own text
    asked = names["executor"].asked
    assert [parameters["slurm_mem"] for parameters in asked] == ["3072M", "4608M", "6912M", "8192M"][:attempts]
    assert [parameters["timeout_min"] for parameters in asked] == [120, 180, 270, 360][:attempts]
    assert asked[0]["slurm_partition"] == "a&[b]"
    assert names["command"] == ODD_COMMAND
    assert raises or str(ODD_COMMAND) in capsys.readouterr().out


GROOVY_STRING = re.compile(r"'(?:[^'\\\n]|\\[nrt'\\]|\\u[0-9a-f]{4})*'")


def test_nextflow_gets_one_process_whose_strings_end_where_they_should():
    text = snippets.nextflow(request(queue="a&[b]", account="p.1"))
    strings = GROOVY_STRING.findall(text)
    plain = GROOVY_STRING.sub("S", text)
    assert not set("'\"\\$") & set(plain)
    directive = r"    (?://.*|executor S|queue S|cpus \d+|(?:memory|time) \{ \[[\w., ]+\]\[task.attempt - 1\] \}"
    directive += r"|clusterOptions S|errorStrategy \{.*\}|maxRetries \d+|script:|S)|"
    head, process, *lines, end, last = plain.split("\n")
    assert head.startswith("// Site:gpu. Retries stop at its limits")
    assert (process, end, last) == ("process TRAIN {", "}", "")
    assert all(re.fullmatch(directive, line) for line in lines)
    # Python reads these escapes as Groovy does.
    assert tuple(shlex.split(ast.literal_eval(strings[-1]))) == ODD_COMMAND
    assert "'a&[b]'" in strings
    assert "memory { [3072.MB, 4608.MB, 6912.MB, 8192.MB][task.attempt - 1] }" in text


@pytest.mark.parametrize("text", ["", "plain", "a'b\"c\\d$e", "\x00\x1b\x7f\x85\u2028\ufeff", "é😀", "a\n\tb: #{c}"])
def test_a_quoted_string_is_read_back(text):
    assert yaml.safe_load(yaml_string(text)) == text
    assert ast.literal_eval(groovy_string(text)) == text
    assert "\n" not in groovy_string(text) + yaml_string(text)


@pytest.mark.parametrize(
    ("device", "name"),
    [("A100 SXM4 80GB", "A100-80GB"), ("A100 SXM4 40GB", "A100"), ("V100 SXM2 32GB", "V100-32GB"),
     ("H100 SXM5 80GB", "H100"), ("T4", "T4"), ("L40S", "L40S"), ("RTX 6000 Ada", "RTX6000")],
)  # fmt: skip
def test_skypilot_has_its_own_names(device, name):
    assert snippets.sky_name(device) == name


def test_skypilot_gets_a_task_of_yaml():
    task = yaml.safe_load(snippets.skypilot(request()))
    assert tuple(shlex.split(task["run"])) == ODD_COMMAND
    assert task["num_nodes"] == 2
    assert task["workdir"] == ".", "the command's own files would be missing on the cloud"
    assert task["resources"] == {
        "accelerators": "A100-80GB:2", "memory": "3+", "cpus": "8+", "autostop": {"idle_minutes": 5, "down": True},
    }  # fmt: skip


RECOMMEND = ["recommend", "config.json", "--on", "Ascend", "--steps", "9"]


@pytest.mark.parametrize("form", list(snippets.FORMS))
def test_the_command_writes_a_snippet(folder, capsys, form):
    assert main(["export", form, "--run", "python fit.py", "--", *RECOMMEND]) == 0
    assert "python fit.py" in capsys.readouterr().out.replace("['python', 'fit.py']", "python fit.py")
    assert main(["export", form, "--to", "new/request", "--run", "python fit.py", "--", *RECOMMEND]) == 0
    assert (folder / "new" / "request").stat().st_size > 100


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--", *RECOMMEND], "--run is missing: name the command"),
        (["--run", "python 'fit.py", "--", *RECOMMEND], "cannot be split into words"),
        (["--run", "true", "--option", "99", "--", *RECOMMEND], "has .* options?, and --option is 99"),
        (["--run", "true", "--", "recommend", "config.json", "--on", "AWS", "--steps", "9"], "requests from Slurm"),
        (["--run", "true", "--", "recommend", "config.json", "--on", "Delta", "--steps", "9"], "without an account"),
    ],
)  # fmt: skip
def test_a_snippet_that_cannot_be_written_says_why(folder, capsys, words, says):
    assert main(["export", "snakemake", *words]) != 0
    assert re.search(says, capsys.readouterr().err)


def test_a_report_is_one_file_without_links_and_escapes_names(folder, capsys):
    pytest.importorskip("jinja2")
    assert (
        main(["export", "report", "--to", "r.html", "--", "estimate", "config.json", "--on", "T4", "--on", "Ascend"])
        == 0
    )
    html = (folder / "r.html").read_text()
    assert "src=" not in html
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", html)
    assert "T4" in html


def test_a_report_of_a_recommendation_has_every_range_and_why(folder, capsys):
    pytest.importorskip("jinja2")
    assert main(["export", "report", "--to", "r.html", "--", *RECOMMEND, "--on", "Pitzer:gpu-quad"]) == 0
    html = (folder / "r.html").read_text()
    headings = re.findall(r'<th scope="col"[^>]*>([^<]+)', html)
    assert headings == ["Place", "Device", "Time", "GPU memory", "Host memory", "Cost", "Request", "Why"]
    cells = re.findall(r"<td.*?</td>", re.findall(r"<tr><th scope=.row.*?</tr>", html, re.DOTALL)[0], re.DOTALL)
    assert all("–" in cell for cell in cells[1:4])
    assert cells[-1].count(".") >= 1
    assert html.count('<div class="scroll"') == 2, "a phone shows plot and table whole"


def test_an_ondemand_app_is_a_new_folder(folder, capsys):
    assert main(["export", "ondemand", "--to", "app", "--cluster", "ascend"]) == 0
    assert 'cluster: "ascend"' in (folder / "app" / "form.yml.erb").read_text()
    assert main(["export", "ondemand", "--to", "app"]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert main(["export", "ondemand", "--to", "config.json"]) == 2
    assert "not an empty folder" in capsys.readouterr().err


ODD_NAME = """a"b'c: <%= `id` %> $(id) \\ {host}"""


def test_an_ondemand_app_quotes_its_names_for_yaml_and_shell(tmp_path):
    files = write_app(tmp_path / "app", cluster=ODD_NAME, host=ODD_NAME)
    for file in files:
        # ERB turns <%% into <%, and Ruby fills in the rest when a user opens the form.
        text = re.sub(r"<%-? .*? -?%>|<%= .*? %>", "RUBY", file.read_text().replace("<%%", "\0")).replace("\0", "<%")
        if ".yml" in file.name:
            read = yaml.safe_load(text)
            assert isinstance(read, dict)
        if file.name == "form.yml.erb":
            assert read["cluster"] == ODD_NAME
            assert set(read["form"]) == {"bc_num_hours", "bc_account", "folder", "allow_submit"}
        if file.name.endswith(".sh.erb"):
            assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
        if file.name == "after.sh.erb":
            assert 'wait_until_port_used "$host:$port"' in text
        if file.name == "script.sh.erb":
            assert '--root-path "/node/$host/$port"' in text
            command = text[text.index("exec leadline") :].replace("\\\n", "")
            words = shlex.split(command.replace("$port", "1").replace("$token_file", "t"))
            assert words[words.index("--allow-host") + 1] == ODD_NAME


def test_every_document_with_a_list_has_a_row_for_each_part():
    lists = {name for name in [*DOCUMENTS, *LISTS, *PLAIN] if name in MAIN_LISTS}
    single = {
        documents.ESTIMATE,
        documents.FIT,
        documents.RUN,
        documents.DEVICE,
        documents.JOB,
        documents.MODEL_CARD,
        "leadline.pipeline-simulation/1",
    }
    assert lists | single == {*DOCUMENTS, *LISTS, *PLAIN}
    logs = documents.logs_document("a", None, ["one", "two"])
    assert rows_of(logs) == [{"text": "one"}, {"text": "two"}]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["export", "excel"], "FORM is 'excel'"), (["export", "table"], "--to is missing"),
        (["export", "table", "--to", "t.csv"], "the command is missing"),
        (["export", "table", "--to", "t.xls", "--", "devices", "list"], "must end with .csv or .parquet"),
        (["export", "nextflow", "--", "devices", "list"], "needs a recommendation"),
        (["export", "table", "--to", "t.csv", "--", "devices", "show", "nope"], "unknown device"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_one_sentence(folder, capsys, words, says):
    assert main(words) != 0
    assert says in capsys.readouterr().err
