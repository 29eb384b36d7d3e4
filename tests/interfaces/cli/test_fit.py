"""``leadline fit`` as a user types it: fits or not, how surely, the largest batch, and what would make it fit."""

import json
import shlex

import pytest

from leadline.interfaces.cli.main import main

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


def asked(capsys, *words):
    code = main(["fit", *words, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_a_job_that_fits_shows_the_margin_and_the_largest_batch(capsys, config):
    code, document, _ = asked(capsys, config, "--batch", "4", "--seq", "1024", "--on", "A100 SXM4 80GB")
    assert (code, document["schema"], document["fits"]) == (0, "leadline.fit/1", True)
    assert document["checks"][0]["needed_bytes"] < document["checks"][0]["there_bytes"] == 80 * 2**30
    assert document["checks"][0]["risk"] < 0.05
    assert 8 < document["largest_batch"] < 400
    assert document["changes"] == []


def test_the_largest_batch_fits_and_one_more_does_not(capsys, config):
    most = asked(capsys, config, "--batch", "4", "--seq", "1024", "--on", "T4", "--precision", "fp16")[1][
        "largest_batch"
    ]
    words = ("--seq", "1024", "--on", "T4", "--precision", "fp16", "--no-changes")
    assert asked(capsys, config, "--batch", str(most), *words)[0] == 0
    assert asked(capsys, config, "--batch", str(most + 1), *words)[0] == 3


def test_a_job_that_does_not_fit_exits_with_3_and_lists_changes_that_fit(capsys, config):
    words = (config, "--batch", "32", "--seq", "2048", "--on", "L4")
    code, document, said = asked(capsys, *words)
    assert code == 3
    assert not document["fits"]
    assert "leadline fit: does not fit on L4; it would with --" in said
    fitting = [one for one in document["changes"] if one["check"]["needed_bytes"] <= one["check"]["there_bytes"]]
    assert len(fitting) >= 3
    for one in fitting:
        if one["options"] and "--on" not in one["options"]:
            given = {one["options"][n]: n for n in range(len(one["options"]))}
            base = [config, "--seq", "2048", "--on", "L4", "--no-changes"]
            base += [] if "--batch" in given else ["--batch", "32"]
            again = asked(capsys, *base, *one["options"])
            assert again[0] == 0, one["options"]
            assert pytest.approx(one["check"]["needed_bytes"]) == again[1]["checks"][0]["needed_bytes"]


def test_changes_that_ask_nothing_but_time_come_first_and_the_quickest_of_them(capsys, config):
    changes = asked(capsys, config, "--batch", "32", "--seq", "2048", "--on", "L4")[1]["changes"]
    fitting = [change for change in changes if change["check"]["needed_bytes"] <= change["check"]["there_bytes"]]
    order = [("nothing", "hardware", "results").index(one["asks"]) for one in fitting]
    assert sorted(order) == order
    free = [one["slower"] for one in fitting if one["asks"] == "nothing"]
    assert sorted(free) == free


def test_a_larger_device_is_named_as_on_takes_it(capsys, config):
    changes = asked(capsys, config, "--batch", "32", "--seq", "2048", "--on", "L4")[1]["changes"]
    larger = next(change for change in changes if change["options"][:1] == ["--on"])
    device = shlex.split(" ".join(larger["options"]))
    code, document, _ = asked(capsys, config, "--batch", "32", "--seq", "2048", *device, "--no-changes")
    assert code == 0
    assert pytest.approx(larger["check"]["needed_bytes"]) == document["checks"][0]["needed_bytes"]


def test_a_smaller_risk_asks_for_more(capsys, config):
    needed = [
        asked(capsys, config, "--batch", "4", "--on", "A100", "--no-changes", "--risk", risk)[1]["checks"][0][
            "needed_bytes"
        ]
        for risk in ("0.2", "0.05", "0.001")
    ]
    assert sorted(needed) == needed
    assert needed[0] < needed[-1]


def test_a_node_s_memory_is_checked_beside_its_gpu(capsys, config):
    _, document, _ = asked(capsys, config, "--batch", "1", "--seq", "512", "--on", "Pitzer:gpu-quad", "--no-changes")
    assert [one["kind"] for one in document["checks"]] == ["GPU", "host"]
    assert document["checks"][1]["there_bytes"] > 300 * 2**30


def test_the_text_draws_the_parts_of_memory(capsys, config):
    assert main(["fit", config, "--batch", "32", "--seq", "2048", "--on", "L4"]) == 3
    shown = capsys.readouterr().out
    assert shown.startswith("L4: does not fit\n")
    assert "activation" in shown
    assert "█" in shown
    assert "largest batch that fits at 5.0% risk" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no target given: name a device or a system with --on"),
        (("--on", "T4", "--risk", "0"), "--risk is 0, but it must be between 0 and 1"),
        (("--on", "Nowhere"), "unknown system or device 'Nowhere'"),
    ],
)
def test_bad_input_ends_in_one_sentence(capsys, config, words, says):
    assert main(["fit", config, *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_unknown_device_memory_differs_from_enough_memory(capsys, config, tmp_path):
    folder = tmp_path / "data" / "catalog" / "devices"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(
        '[[devices]]\nname = "Mystery"\nvendor = "nvidia"\nkind = "gpu"\nconfidence = "found"\nsource = "a rumour"\n'
        "memory_gb_per_s = 900\ntflops = { float32 = 10, bfloat16 = 80 }\n"
    )
    from leadline.app.composition import toolbox

    toolbox.cache_clear()
    code, document, _ = asked(capsys, config, "--batch", "4", "--on", "Mystery")
    toolbox.cache_clear()
    assert code == 0
    assert document["fits"] is None
    assert document["checks"][0]["risk"] is None
    assert "the memory of Mystery is not known" in document["notes"][0]
    assert document["largest_batch"] is None


def test_the_timeline_is_plotted_by_category_in_the_terminal(capsys, config):
    words = ["fit", config, "--batch", "4", "--seq", "1024", "--on", "L4", "--no-changes", "--timeline"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    chart = shown[shown.index("memory over one step") :].splitlines()
    assert len(chart) == 15
    assert "forward" in chart[-2]
    assert "backward" in chart[-2]
    assert all(letter in chart[-1] for letter in ("W weights", "A activations", "O optimizer state"))
    columns = list(zip(*(line[11:83].ljust(72) for line in chart[1:13]), strict=True))
    heights = [sum(cell.isalpha() for cell in column) for column in columns]
    assert max(heights) >= 10
    assert heights[0] < max(heights) > heights[-1]  # activations are kept in the forward pass and given back afterwards


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_timeline_is_drawn_into_a_file(capsys, config, tmp_path, ending):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"memory.{ending}"
    words = ["fit", config, "--batch", "4", "--seq", "1024", "--on", "L4", "--no-changes", "--plot", str(path)]
    assert main(words) == 0
    assert f"saved to {path}" in capsys.readouterr().err.replace("\n", "")
    content = path.read_bytes()
    if ending == "png":
        from PIL import Image

        image = Image.open(path)
        assert image.width > 1000
        colours = {colour for _, colour in image.convert("RGB").getcolors(2**20)}
        assert (0xD5, 0x5E, 0x00) in colours  # activations
        assert (0x00, 0x72, 0xB2) in colours  # weights
    else:
        assert b"<svg" in content
        assert b"#d55e00" in content.lower()


def test_a_picture_of_another_kind_is_refused_before_anything_is_estimated(capsys, config, tmp_path):
    assert main(["fit", config, "--on", "L4", "--plot", str(tmp_path / "memory.gif")]) == 2
    assert "it must end in .svg or .png" in capsys.readouterr().err
    assert not (tmp_path / "memory.gif").exists()


def test_the_document_has_the_timeline_on_request(capsys, config):
    words = (config, "--batch", "4", "--seq", "1024", "--on", "L4", "--no-changes")
    assert asked(capsys, *words)[1]["moments"] == []
    moments = asked(capsys, *words, "--timeline")[1]["moments"]
    assert 100 < len(moments) <= 200
    assert {"forward", "backward", "optimizer"} == {moment["stage"] for moment in moments}
    assert max(sum(moment["held_bytes"].values()) for moment in moments) <= max(
        moment["reserved_bytes"] for moment in moments
    )


def test_assumptions_of_a_trace_are_reported(capsys, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "model.py").write_text(
        "from torch import nn\n\nclass Chosen(nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x[x.sum(1) > 0])\n\ndef build():\n    return Chosen(8, 8)\n"
    )
    model = f"{tmp_path / 'model.py'}:build"
    code, document, _ = asked(capsys, model, "--input", "4x8", "--on", "T4", "--no-changes")
    assert (code, document["fits"]) == (0, True)
    assert "depends on the data: all was assumed" in document["notes"][0]


def test_a_paged_cache_shows_how_many_sequences_fit(capsys, config):
    """12 layers of 16 heads of 64 keys and values in two bytes: 48 KiB a token, 1,536 tokens in whole blocks."""
    words = (
        config,
        "--phase",
        "inference",
        "--precision",
        "fp16",
        "--batch",
        "4",
        "--seq",
        "1024",
        "--generate",
        "512",
    )
    plain = asked(capsys, *words, "--on", "T4")[1]
    document = asked(capsys, *words, "--paged", "--on", "T4")[1]
    assert plain["serving"] is None
    serving, check = document["serving"], document["checks"][0]
    rest = check["needed_bytes"] - document["estimate"]["basis"]["memory_breakdown_bytes"]["kv-cache"]
    assert pytest.approx(0.9 * 16 * 2**30 - rest) == serving["cache_bytes"]
    assert serving["cache_bytes"] // (1536 * 48 * 1024) == serving["sequences"]
    assert plain["largest_batch"] <= serving["sequences"]  # in the whole device, where paging has nine tenths of it


def test_a_paged_cache_needs_tokens_to_be_generated(capsys, config):
    assert main(["fit", config, "--phase", "inference", "--paged", "--on", "T4"]) == 2
    assert "--generate" in capsys.readouterr().err


def test_the_reason_for_an_unknown_time_is_shown_once(capsys, config):
    main(["fit", config, "--batch", "1", "--seq", "128", "--on", "V100 SXM2 16GB", "--no-changes"])
    assert capsys.readouterr().out.count("no bfloat16 peak in the catalog") == 1
    main(["estimate", config, "--batch", "1", "--seq", "128", "--on", "V100 SXM2 16GB"])
    assert capsys.readouterr().out.count("no bfloat16 peak in the catalog") == 1
