"""Reading tables of runs."""

import gzip

import pytest
from made_runs import campaign

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.runs import Scale
from leadline.history.export import runs_to_csv
from leadline.training.dataset import make_dataset
from leadline.training.records import TrainingOptions, run_records
from leadline.training.tables import read_tables


def table(tmp_path, text, name="runs.csv", **more):
    path = tmp_path / name
    path.write_text(text)
    return read_tables(path, **more)


def test_an_exported_history_is_read_as_the_history_itself(tmp_path):
    runs = campaign(10, 3)
    runs[2] = runs[2].__class__(**{f: getattr(runs[2], f) for f in runs[2].__slots__} | {"tags": {"node_hz": "2000"}})
    expected = run_records(runs)
    read = table(tmp_path, runs_to_csv(runs))
    assert [record.features for record in expected] == [record.features for record in read]
    assert [record.metrics for record in expected] == [record.metrics for record in read]
    assert [(record.id, record.state, record.scale) for record in expected] == [
        (record.id, record.state, record.scale) for record in read
    ]
    options = TrainingOptions(without=("node_hz",))
    assert make_dataset(expected, options=options).dataset == make_dataset(read, options=options).dataset


def test_a_metric_of_some_runs_is_absent_in_the_others(tmp_path):
    text = "id,campaign,scale,measured_elapsed_s,measured_startup_s,parameter_n\na,fft,SD,2,0.5,1\nb,fft,FS,4,,2\n"
    first, second = table(tmp_path, text)
    assert first.metrics == {"elapsed_s": 2.0, "startup_s": 0.5}
    assert second.metrics == {"elapsed_s": 4.0}


def test_a_folder_of_compressed_tables_is_one_history(tmp_path):
    runs = campaign(10, 4)
    for number, part in enumerate((runs[:6], runs[6:])):
        (tmp_path / f"part{number}.csv.gz").write_bytes(gzip.compress(runs_to_csv(part).encode()))
    assert len(read_tables(tmp_path)) == 14


def test_any_table_with_the_target_is_read_and_measured_columns_are_not_features(tmp_path):
    first, second = table(
        tmp_path, "epochs;loss;elapsed_s;cpu_s;state;scale\n1;mse;3.5;3;;SD\n2;mae;4.5;4;TIMEOUT;FS\n"
    )
    assert first.features == {"epochs": 1, "loss": "mse"}
    assert first.metrics == {"elapsed_s": 3.5, "cpu_s": 3.0}
    assert (first.state, first.scale) == (JobState.COMPLETED, Scale.SCALED_DOWN)
    assert (second.state, second.scale, second.label) == (JobState.TIMEOUT, Scale.FULL_SCALE, "line 3 of runs.csv")


def test_a_column_with_one_unit_is_read_in_seconds_or_bytes(tmp_path):
    first, _ = table(tmp_path, "block,elapsed_s\n2 GiB,3 min\n4GiB,4min\n")
    assert first.metrics["elapsed_s"] == 180
    assert first.features["block"] == 2 * 2**30
    assert first.units == {"block": "bytes", "elapsed_s": "s"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,elapsed_s\n1,10s\n2,3 min\n", "'elapsed_s' of runs.csv mixes units: '10s' in line 2 and '3 min' in line 3"),
        ("a,elapsed_s\n2GB,1\n512,2\n", "'a' of runs.csv mixes units: '2GB' in line 2 and '512' in line 3"),
        ("a,b,elapsed_s\n1,,10\n2,,11\n", "column 'b' of runs.csv is empty in every row"),
        ("a,elapsed_s\n1,10\nnan,11\n", "line 3 of runs.csv: a is 'nan', not a number"),
        ("a,elapsed_s\n1,10\n2,inf\n", "line 3 of runs.csv: elapsed_s is 'inf'"),
        ("a,elapsed_s\n1,10\n2,\n", "line 3 of runs.csv: elapsed_s is empty"),
        ("a,elapsed_s\n1,10\n2,11\n3,12\ntwo,11\n", "line 5 of runs.csv: a is 'two' where other rows have numbers"),
        ("a,elapsed_s\n1,slow\n2,fast\n", "line 2 of runs.csv: elapsed_s is 'slow', which is not a number"),
        ("a,walltime\n1,10\n", "has no column 'elapsed_s' to learn: name one with --target; it has a, walltime"),
        ("a,elapsed_s\n1,10,3\n", "line 2 of runs.csv has 3 cells where the first line names 2"),
        ("a,a,elapsed_s\n1,1,10\n", "has the column 'a' twice"),
        ("a,,elapsed_s\n1,1,10\n", "column 2 of runs.csv has no name"),
        ("a,elapsed_s,state\n1,10,done\n", "line 2 of runs.csv: state is 'done'; write one of COMPLETED"),
        ("a,elapsed_s,scale\n1,10,big\n", "line 2 of runs.csv: scale is 'big'; write SD"),
        ("a,elapsed_s\n", "names columns and has no run"),
        ("\n", "is empty"),
    ],
)  # fmt: skip
def test_an_unusable_table_is_an_error_with_place_and_reason(tmp_path, text, why):
    with pytest.raises(InvalidInput) as raised:
        table(tmp_path, text)
    assert why in str(raised.value)


def test_no_target_is_taken_for_a_parameter(tmp_path):
    record, _ = table(tmp_path, "a,elapsed_s,energy_j\n1,10,100\n2,11,110\n", targets=["elapsed_s", "energy_j"])
    assert record.features == {"a": 1}
    assert record.metrics == {"elapsed_s": 10.0, "energy_j": 100.0}


def test_an_empty_column_can_be_left_out_by_name(tmp_path):
    assert len(table(tmp_path, "a,b,elapsed_s\n1,,10\n2,,11\n", without=["b"])) == 2
    with pytest.raises(InvalidInput, match="no column 'c' to leave out"):
        table(tmp_path, "a,b,elapsed_s\n1,,10\n", without=["c"])


def test_a_truncated_missing_or_binary_file_is_an_error(tmp_path):
    whole = gzip.compress(b"a,elapsed_s\n" + b"1,10\n" * 1000)
    (tmp_path / "cut.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(InvalidInput, match="cut short"):
        read_tables(tmp_path / "cut.csv.gz")
    with pytest.raises(InvalidInput, match="No such file"):
        read_tables(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="UTF-8"):
        read_tables(tmp_path / "binary.csv")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match="holds no table"):
        read_tables(tmp_path / "folder")
