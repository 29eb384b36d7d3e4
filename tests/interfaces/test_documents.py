"""Published JSON Schemas describe the documents that the commands print."""

import json

import pytest

import leadline
from leadline.interfaces.json_schemas import DOCUMENTS, json_schema

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 100,
        "max_position_embeddings": 64, "torch_dtype": "bfloat16",
    }))  # fmt: skip
    return path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_schema_is_valid(name):
    jsonschema.Draft202012Validator.check_schema(json_schema(name))


@pytest.mark.parametrize(
    "ask",
    [
        lambda config: leadline.estimate(config, batch=1, seq=32, on="T4"),
        lambda config: leadline.estimate(config, batch=1, seq=32, on=["T4", "A100 SXM4 80GB"]),
        lambda config: leadline.fit(config, batch=1, seq=32, on="T4"),
        lambda config: leadline.recommend(config, batch=1, seq=32, on="Pitzer"),
    ],
)
def test_a_document_satisfies_its_schema(config, ask):
    document = json.loads(json.dumps(ask(config).to_dict(), default=str))
    schema = json_schema(document["schema"])
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "schema": "leadline.other/1"}, schema)
