"""Published fine-tunes are asked about as they were run, of models of the published size."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.memory.bound import transfer_bounds
from benchmarks.memory.fine_tunes import SIZES, config_of, run, workload_of
from leadline.core.errors import InvalidInput
from leadline.core.workload import ModelKind, ModelSource, Phase, Precision, Sharding, Workload
from leadline.graphs.hf_config.expand import expand

DATA = Path(os.environ.get("LEADLINE_DATA", os.devnull))
COLUMNS = {
    "Model Size": np.array(["1.8B", "72B", "7B"]),
    "Method": np.array(["Q-LoRA", "LoRA + Deepspeed Zero3", "LoRA (multinode)"]),
    "#Nodes": np.array([1, 1, 2]), "#GPUs per node": np.array([1, 4, 2]), "seq_len": np.array([256, 512, 1024]),
}  # fmt: skip


@pytest.mark.parametrize(("model", "weights"), [("1.8B", 1_836_828_672), ("7B", 7_721_324_544)])
def test_the_models_have_their_published_weights(tmp_path, model, weights):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of(model)))
    workload = Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), phase=Phase.INFERENCE, sequence=16)
    assert weights == expand(workload).step.parameters


def test_a_run_is_predicted_as_the_scripts_ran_it(tmp_path):
    quantized, sharded, nodes = (workload_of(COLUMNS, place, tmp_path) for place in range(3))
    assert (quantized.gpus, quantized.sequence, quantized.precision) == (1, 256, Precision.FP16)
    assert json.loads(Path(quantized.model.reference).read_text())["quantization_config"]["quant_method"] == "gptq"
    deepspeed = [dict(run.adapters.settings).get("deepspeed", False) for run in (quantized, sharded, nodes)]
    assert deepspeed == [True, True, False]
    shardings = [run.parallelism.sharding for run in (quantized, sharded, nodes)]
    assert shardings == [Sharding.NONE, Sharding.FULL, Sharding.NONE]
    assert (sharded.gpus, nodes.gpus) == (4, 4)
    assert {"1.8B", "7B", "14B", "72B"} == set(SIZES)


def test_without_data_it_says_what_is_missing():
    with pytest.raises(InvalidInput, match="--data"):
        run()


@pytest.mark.skipif(not DATA.is_dir(), reason="LEADLINE_DATA names no folder of measured data")
def test_every_method_is_told_apart():
    result = run(quick=True, data=DATA)
    named = {row.name.partition(":")[0] for row in result.rows}
    assert (
        {"all", "LoRA", "LoRA (emb)", "Q-LoRA", "Full-parameter", "peft", "Qwen"} >= named >= {"all", "LoRA", "Q-LoRA"}
    )
    assert all(0 < one["predicted_gb"] < 100 for one in result.details)


def test_the_bound_of_a_new_source_is_wider_than_that_of_any_measured_one():
    qwen, peft = [0.8 + 0.005 * step for step in range(80)], [0.98 + 0.001 * step for step in range(40)]
    (low, high), above = transfer_bounds({"Qwen": qwen, "peft": peft})
    assert low < min(qwen)
    assert high > sorted(qwen)[-4]
    assert above["Qwen"] > 0.05
    assert above["peft"] == 0
