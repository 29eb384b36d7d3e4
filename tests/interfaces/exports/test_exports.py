"""Answers as files of other tools."""

import ast
import csv
import io
import json
import re
import shlex
import shutil
import subprocess

import pytest

from leadline.core.errors import InvalidInput
from leadline.interfaces.cli.main import main
from leadline.interfaces.exports import snippets
from leadline.interfaces.exports.tables import rows_of, write_table
from leadline.interfaces.tools import tools
from tests.interfaces.test_tools import LLAMA


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


def request(recommendation, command=("python", "train.py", "--note", "a {b} $c")):
    return snippets.request_of(json.loads(json.dumps(recommendation, default=str)), command)


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


def test_snakemake_asks_for_more_at_each_attempt_and_leaves_braces_alone(recommendation):
    text = snippets.snakemake(request(recommendation))
    memory = re.search(r"mem_mb=lambda wildcards, attempt: (.*),\n", text)[1]
    first, second = (eval(memory, {"attempt": attempt, "int": int}) for attempt in (1, 2))  # noqa: S307 - our own text
    assert second == int(first * 1.5)
    assert "a {{b}} $c" in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("snakemake") is None, reason="needs snakemake")
def test_snakemake_takes_the_rule(folder, recommendation):
    (folder / "Snakefile").write_text(snippets.snakemake(request(recommendation)))
    done = subprocess.run(["snakemake", "--lint"], cwd=folder, capture_output=True, text=True, check=False)
    assert "SyntaxError" not in done.stderr


def test_submitit_gets_a_program_that_python_reads(recommendation):
    tree = ast.parse(snippets.submitit(request(recommendation)))
    assert any(isinstance(node, ast.For) for node in tree.body)


def test_nextflow_keeps_the_shells_dollar(recommendation):
    text = snippets.nextflow(request(recommendation))
    assert r"\$c" in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("device", "name"),
    [("A100 SXM4 80GB", "A100-80GB"), ("A100 SXM4 40GB", "A100"), ("V100 SXM2 32GB", "V100-32GB"),
     ("H100 SXM5 80GB", "H100"), ("T4", "T4"), ("L40S", "L40S"), ("RTX 6000 Ada", "RTX6000")],
)  # fmt: skip
def test_skypilot_has_its_own_names(device, name):
    assert snippets.sky_name(device) == name


def test_skypilot_runs_a_command_with_any_characters(recommendation):
    text = snippets.skypilot(request(recommendation, ("python", "-c", "print(1)\nprint('#: a')")))
    (line,) = [line for line in text.splitlines() if line.startswith("run: ")]
    assert shlex.split(json.loads(line.removeprefix("run: "))) == ["python", "-c", "print(1)\nprint('#: a')"]


def test_an_option_that_is_not_there_is_one_sentence(recommendation):
    with pytest.raises(InvalidInput, match=r"has .* options, and number 99 is asked for"):
        snippets.request_of(json.loads(json.dumps(recommendation, default=str)), ["x"], 99)


@pytest.mark.parametrize("form", list(snippets.FORMS))
def test_the_command_writes_a_snippet(folder, capsys, form):
    assert (
        main(
            [
                "export",
                form,
                "--run",
                "python fit.py",
                "--",
                "recommend",
                "config.json",
                "--on",
                "Ascend",
                "--steps",
                "9",
            ]
        )
        == 0
    )
    assert "python fit.py" in capsys.readouterr().out.replace("['python', 'fit.py']", "python fit.py")


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


def test_an_ondemand_app_is_a_new_folder(folder, capsys):
    assert main(["export", "ondemand", "--to", "app", "--cluster", "ascend"]) == 0
    assert 'cluster: "ascend"' in (folder / "app" / "form.yml.erb").read_text()
    assert main(["export", "ondemand", "--to", "app"]) == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["export", "excel"], "FORM is 'excel'"), (["export", "table"], "the command is missing"),
        (["export", "table", "--to", "t.xls", "--", "devices", "list"], "must end with .csv or .parquet"),
        (["export", "nextflow", "--", "devices", "list"], "needs a recommendation"),
        (["export", "table", "--to", "t.csv", "--", "devices", "show", "nope"], "unknown device"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_one_sentence(folder, capsys, words, says):
    assert main(words) != 0
    assert says in capsys.readouterr().err
