"""A configuration of seven billion weights, a small one of its make, and what is asked of their graphs."""

import json

import pytest

from leadline.core.graph import OpKind
from leadline.core.workload import ModelKind, ModelSource, Recompute, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.graphs.hf_config.expand import expand

LLAMA_7B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
            "num_hidden_layers": 32, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
SMALL = {**LLAMA_7B, "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8, "num_hidden_layers": 3,
         "vocab_size": 1000}  # fmt: skip


@pytest.fixture
def expanded(tmp_path):
    def run(config, *, checkpointing=False, **settings):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        recompute = Recompute.FULL if checkpointing else Recompute.NONE
        return expand(Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), recompute=recompute, **settings))

    return run


def flops(graph, *kinds, stage=None):
    return sum(op.flops * op.count for op in graph.ops if op.kind in (kinds or OpKind) and stage in (None, op.stage))


def peak(graph):
    return peak_memory(graph).allocated_bytes
