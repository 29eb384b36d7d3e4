"""A configuration with impossible values ends in one sentence with the field, before anything is expanded."""

import json
import time

import pytest

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.hf_config.expand import expand

SMALL = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
         "num_hidden_layers": 2, "vocab_size": 1000}  # fmt: skip
EXPERTS = {**SMALL, "model_type": "qwen2_moe", "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
DISTANCES = {**SMALL, "model_type": "deberta-v2", "relative_attention": True}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**SMALL, "num_hidden_layers": 3_000_000_000}, "num_hidden_layers is 3000000000, but at most 2,000"),
        ({**SMALL, "hidden_size": 10**400}, "hidden_size is 1000"),
        ({**SMALL, "model_type": ["llama"]}, "unknown model_type"),
        ({**EXPERTS, "mlp_only_layers": 1}, "mlp_only_layers is 1, but it must be a list"),
        ({**DISTANCES, "pos_att_type": 1}, "pos_att_type is 1, but it must be a list"),
        ({**DISTANCES, "position_buckets": 10**400}, "position_buckets is 1000"),
        ("[" * 100_000, "is not JSON: maximum recursion depth"),
        ('{"model_type": ' + "9" * 5000, "is not JSON: Exceeds the limit"),
    ],
)
def test_an_impossible_value_is_refused_soon(tmp_path, config, says):
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    began_s = time.process_time()
    with pytest.raises((InvalidInput, UnknownName)) as caught:
        expand(Workload(ModelSource(ModelKind.HF_CONFIG, str(path))))
    assert says in str(caught.value)
    assert len(str(caught.value)) < 2100
    assert time.process_time() - began_s < 2
