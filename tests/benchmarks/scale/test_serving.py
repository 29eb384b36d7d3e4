"""Served answers: which rows are comparable, the seconds of a request, and the memory of few bits."""

import json
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from benchmarks.scale.serving import served_answers, serving_rows  # noqa: E402 - pyarrow may be absent
from benchmarks.scale.serving_memory import memory_rows  # noqa: E402 - see above
from leadline.app.estimate.step_estimators import ENGINE_ERRORS  # noqa: E402 - see above

USUAL = {
    "source_id": "aic-silicon", "engine": "vllm", "model": "meta-llama/Llama-3.1-8B-Instruct", "quant": "fp8",
    "device": "h200_sxm", "mode": "agg", "throughput_scope": "", "tp": 2.0, "pp": 1.0, "gpus": 2.0,
    "attention_dp": 1.0, "moe_tp": 1.0, "moe_ep": 1.0, "batch": 8.0, "isl": 1024.0, "osl": 101.0, "tpot_ms": 10.0,
    "ttft_ms": 200.0, "tokens_per_s": None,
}  # fmt: skip


NUMBERS = {key for key, value in USUAL.items() if not isinstance(value, str)} | {"value_gb"}


def write(folder, name, rows):
    table = {key: [row[key] for row in rows] for key in rows[0]}
    types = {key: pa.float64() if key in NUMBERS else pa.string() for key in table}
    arrays = {key: pa.array(column, types[key]) for key, column in table.items()}
    pq.write_table(pa.table(arrays), folder / f"{name}.parquet")


def test_a_request_takes_its_first_token_and_the_others(tmp_path):
    static = {**USUAL, "source_id": "trtllm-0.9", "mode": "static batch", "device": "H100-SXM-80GB",
              "model": "LLaMA 7B", "tpot_ms": None, "ttft_ms": None, "tokens_per_s": 404.0,
              "throughput_scope": "output tokens, per GPU"}  # fmt: skip
    write(tmp_path, "llm_serving", [USUAL, static])
    answers = {served.source: served for served in served_answers(tmp_path)}
    steady, batch = answers["aic-silicon, vllm"], answers["trtllm-0.9, vllm"]
    assert steady.answer_s == pytest.approx(0.2 + 100 * 0.01)
    assert batch.answer_s == pytest.approx(8 * 101 / (2 * 404))
    assert steady.options["quantize"] == steady.options["kv_cache_dtype"] == "fp8"
    assert (steady.options["gpus"], steady.device) == (2, "H200 SXM")


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "disagg"},
        {"moe_ep": 2.0},
        {"attention_dp": 2.0},
        {"gpus": 16.0},
        {"ttft_ms": 5000.0},
        {"model": "Qwen/Qwen3.5-397B-A17B"},
        {"batch": None},
        {"osl": 1.0},
    ],
)
def test_rows_that_are_no_full_batch_on_shared_layers_are_left_out(tmp_path, change):
    write(tmp_path, "llm_serving", [USUAL, {**USUAL, "engine": "other", **change}])
    assert [served.source for served in served_answers(tmp_path)] == ["aic-silicon, vllm"]


def test_the_error_is_that_of_the_answer_and_the_width_that_of_other_sources(tmp_path):
    slow = {**USUAL, "source_id": "another", "ttft_ms": 2000.0, "tpot_ms": 100.0}
    write(tmp_path, "llm_serving", [USUAL, slow])
    rows = {row.name: row for row in serving_rows(tmp_path)}
    error = rows["serving, fp8: median error"]
    assert error.n == 2
    assert 0 < error.value < 100
    assert error.baseline > 0
    assert "serving, fp8: 90 % intervals that hold, source left out" not in rows


def test_memory_is_that_of_the_format(tmp_path):
    row = {"kind": "peak memory, generate", "model": "Llama 2 7B", "quant": "bnb.nf4-dq", "value_gb": 4.26,
           "unit": "GB (as told)", "kv_cache_quant": "", "batch": 1.0, "isl": None, "osl": None}  # fmt: skip
    write(tmp_path, "llm_quant_memory", [row, {**row, "quant": "bf16", "value_gb": 13.52}, {**row, "unit": "GiB"}])
    rows = memory_rows(tmp_path)
    assert [(each.name.split(", ")[1].split(":")[0], each.n) for each in rows] == [("NF4", 1), ("bf16", 1)]
    assert all(each.value < 8 for each in rows)


def test_the_errors_that_estimates_name_are_those_of_the_last_run():
    results = Path(__file__).parents[3] / "benchmarks" / "results" / "scale.json"
    rows = json.loads(results.read_text(encoding="utf-8"))["rows"]
    served = [row for row in rows if row["name"].startswith("serving, ") and row["name"].endswith(": median error")]
    for experts in (False, True):
        group = [row for row in served if ("experts" in row["name"]) == experts and "all" not in row["name"]]
        low, *_, high = sorted(row["value"] for row in group)
        assert f"{low:.0f} to {high:.0f} % on {sum(row['n'] for row in group)} " in ENGINE_ERRORS
