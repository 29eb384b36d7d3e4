"""Damaged HLO and StableHLO ends in one sentence with the line, soon; a text that multiplies itself is refused."""

import time
from contextlib import suppress

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.workload import ModelKind, ModelSource, Phase, Workload
from leadline.graphs.hlo import flatten
from leadline.graphs.hlo.read import traced_job
from tests.graphs.hlo import texts

FUSION = "f32[256,256]{1,0} fusion"
STEPPED = texts.LOOP.replace("START", "0").replace("LIMIT", "%c_1").replace("STEP", "1")
CONVOLVED = texts.CONV.replace("OUT", "8x16x16x64").replace("D", "1")
MANY = 100_000


def refusal(text):
    workload = Workload(ModelSource(ModelKind.HLO, "step.hlo"), phase=Phase.INFERENCE)
    began_s = time.process_time()
    with pytest.raises(InvalidInput, match=r"^step\.hlo") as caught:
        traced_job(text, workload, device_type="cuda")
    assert time.process_time() - began_s < 5
    assert len(str(caught.value)) < 400
    return str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("parameter(0)", "parameter(x)", "is not an HLO instruction: export the whole text again"),
        ("index=0", "index=" + "9" * 5000, "is not an HLO instruction"),
        ("index=0", "index=", "is not an HLO instruction"),
        ("f32[256,256]{1,0} parameter(0)", "f32[1e9,256]{1,0} parameter(0)", "is not an HLO instruction"),
        ("replica_groups={{0,1,2,3}}", "replica_groups=[]<=[4]", "is not an HLO instruction"),
        ("all-reduce-done(%all-reduce-start)", "all-reduce-done()", "the operands of all-reduce-done"),
        ('"lhs_contracting_dimensions":["0"]', '"lhs_contracting_dimensions":["7"]', "do not fit together"),
        ("f32[256,256]", f"f32[{'9' * 400},256]", "do not fit together"),
        ("calls=%slicing", "calls=%absent", "absent is called but missing"),
    ],
)
def test_a_damaged_line_of_hlo_is_refused(before, after, says):
    assert before in texts.COMPILED
    assert says in refusal(texts.COMPILED.replace(before, after))


@pytest.mark.parametrize(
    ("text", "before", "after", "says"),
    [
        (texts.MLP, "return %3", "return %9", "9 is read before it is made"),
        (texts.MLP, "contracting_dims = [1]", "contracting_dims = [9]", "do not fit together"),
        (STEPPED, " : tensor<i32>, tensor<32x64xf32>\n    cond", " : tensor<i32>\n    cond", "do not fit together"),
        (CONVOLVED, "[b, 0, 1, f]x[0, 1, i, o]", "[b, 0, 1]x[0, 1, i, o]", "do not fit together"),
    ],
)
def test_damaged_stablehlo_is_refused(text, before, after, says):
    assert before in text
    assert says in refusal(text.replace(before, after))


def test_a_module_without_its_first_line_is_read():
    workload = Workload(ModelSource(ModelKind.HLO, "step.hlo"), phase=Phase.INFERENCE)
    text = texts.MLP.replace("module @jit_step", "@jit_step")
    assert traced_job(text, workload, device_type="cuda").step.ops


def test_calls_that_multiply_are_refused(monkeypatch):
    monkeypatch.setattr(flatten, "MOST_NODES", 10_000)
    lines = ["HloModule x"]
    for number in range(40, 0, -1):
        body = [f"  b = f32[] call(a), to_apply=f{number + 1}", f"  ROOT c = f32[] call(b), to_apply=f{number + 1}"]
        ending = body if number < 40 else ["  ROOT c = f32[] add(a, a)"]
        lines += [f"f{number} (a: f32[]) -> f32[] {{", "  a = f32[] parameter(0)", *ending, "}"]
    lines += ["ENTRY m (a: f32[]) -> f32[] {", "  a = f32[] parameter(0)", "  ROOT c = f32[] call(a), to_apply=f1", "}"]
    text = "\n".join(lines)
    assert "more than 10,000 instructions in place" in refusal(text)
    assert "fusions are nested deeper than 8" in refusal(text.replace("call(", "fusion(").replace("to_apply", "calls"))


def test_tuples_that_multiply_are_refused():
    doubled = [f"  a{number + 1} = (f32[], f32[]) tuple(a{number}, a{number})" for number in range(60)]
    lines = [
        "HloModule x",
        "ENTRY m (a: f32[]) -> f32[] {",
        "  a0 = f32[] parameter(0)",
        *doubled,
        "  ROOT r = f32[] add(a60)",
        "}",
    ]
    assert "a19 has more than 300,000 parts" in refusal("\n".join(lines))


@pytest.mark.parametrize("word", ["f32[", "f32[1]{", "a" * 5])
def test_a_long_line_takes_linear_time(word):
    began_s = time.process_time()
    workload = Workload(ModelSource(ModelKind.HLO, "step.hlo"), phase=Phase.INFERENCE)
    traced_job(texts.COMPILED.replace(FUSION, word * MANY + " fusion", 1), workload, device_type="cuda")
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize("attribute", ['\\"' * MANY, "contracting_dims = [" * MANY])
def test_a_long_attribute_of_stablehlo_takes_linear_time(attribute):
    began_s = time.process_time()
    workload = Workload(ModelSource(ModelKind.HLO, "step.mlir"), phase=Phase.INFERENCE)
    line = next(line for line in texts.MLP.splitlines() if "contracting_dims" in line)
    before, _, after = line.rpartition(" : ")
    with suppress(InvalidInput):
        traced_job(texts.MLP.replace(line, f"{before}, {attribute} : {after}"), workload, device_type="cuda")
    assert time.process_time() - began_s < 5
