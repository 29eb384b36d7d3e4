"""The estimator with the least measured error on the group at hand is taken, and says so."""

from dataclasses import replace

import pytest

from leadline.core.graph import Op, OpGraph, OpKind, Stage
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.recent_cache import KEPT, RecentCache
from leadline.estimators.step_time.selection import (
    AccuracyRecord,
    Domain,
    StepGroup,
    describe_choice,
    find_step_group,
    rank_estimators,
)

OLD = Device("Old", "nobody", DeviceKind.GPU, peak_flops_per_s={"float32": 1e13})
AMPERE = replace(OLD, peak_flops_per_s={"float32": 1e13, "tf32": 1e14})
VISION = StepGroup(Domain.VISION, "half", "inference")


def op(kind, flops=1e9, dtype="float16", stage=Stage.FORWARD):
    return Op(f"aten.{kind}", kind, stage, dtype, flops, 1e6, 1e6)


CONV, GEMM, ATTENTION = op(OpKind.CONV), op(OpKind.GEMM), op(OpKind.ATTENTION)
WORDS, LSTM = op(OpKind.EMBEDDING, 0.0), op(OpKind.RNN)


@pytest.mark.parametrize(
    ("ops", "domain"),
    [
        ((CONV,), Domain.VISION),
        ((op(OpKind.CONV, 1e8), GEMM, ATTENTION), Domain.VISION),
        ((CONV, CONV, CONV, GEMM, WORDS, ATTENTION), Domain.VISION),
        ((WORDS, GEMM, ATTENTION), Domain.LANGUAGE),
        ((op(OpKind.CONV, 1e8), WORDS, GEMM, ATTENTION), Domain.LANGUAGE),
        ((WORDS, GEMM, op(OpKind.SOFTMAX)), Domain.LANGUAGE),
        ((WORDS, LSTM), Domain.OTHER),
        ((GEMM,), Domain.OTHER),
        ((), Domain.OTHER),
    ],
    ids=["convolutions", "patches", "images and words", "words", "audio", "written-out attention", "recurrent",
         "perceptron", "nothing"],
)  # fmt: skip
def test_a_graph_reveals_its_domain(ops, domain):
    assert domain is find_step_group(OpGraph(ops), OLD).domain


def test_a_group_has_the_phase_and_the_precision_of_most_arithmetic():
    training = OpGraph((CONV, op(OpKind.CONV, stage=Stage.BACKWARD), op(OpKind.GEMM, 1e6, "float32")))
    assert StepGroup(Domain.VISION, "half", "training") == find_step_group(training, OLD)
    single = OpGraph((op(OpKind.CONV, dtype="float32"),))
    assert find_step_group(single, OLD).precision == "single"
    assert find_step_group(single, AMPERE).precision == "TF32"
    language = OpGraph((WORDS, op(OpKind.GEMM, dtype="float32"), op(OpKind.SOFTMAX)))
    assert find_step_group(language, AMPERE).precision == "single"


def record(name, error, *, known=False, group=VISION):
    return AccuracyRecord(
        name, group, known, error, 2 * error, 100, ("A", "B"), ("nobody",), ("Old",), "somebody's steps"
    )


NAMES = ("law", "kernels", "specs")
RECORDS = (
    record("law", 0.06, known=True), record("law", 0.15), record("kernels", 0.10), record("specs", 0.40),
    record("specs", 0.01, group=replace(VISION, phase="training")),
)  # fmt: skip


def test_the_least_error_comes_first_by_each_estimators_knowledge_of_the_device():
    assert [rank_estimator.estimator for rank_estimator in rank_estimators(RECORDS, VISION, NAMES, ())] == [
        "kernels",
        "law",
        "specs",
    ]
    assert [rank_estimator.estimator for rank_estimator in rank_estimators(RECORDS, VISION, NAMES, ("law",))] == [
        "law",
        "kernels",
        "specs",
    ]
    assert rank_estimators(RECORDS, replace(VISION, precision="TF32"), NAMES, ("law",)) == []


def test_the_reason_names_the_choice_its_error_and_the_others():
    first, *rest = rank_estimators(RECORDS, VISION, NAMES, ("law",))
    assert describe_choice(first, rest) == (
        "priced by the law: 6% off on 100 steps of vision inference in half precision on devices in its "
        "training data (somebody's steps); the kernels 10%, the specs 40%"
    )
    assert describe_choice(rest[-1], []).endswith("on devices outside its training data (somebody's steps)")


def test_nine_in_ten_errors_are_within_the_interval_of_the_spread():
    assert 1.645 * record("law", 0.06).spread == pytest.approx(2 * 0.06)


def test_another_vendor_counts_as_unmeasured_and_another_architecture_adds_a_bit():
    plain = record("law", 0.06)
    alike = replace(
        OLD, architecture="Old", compute_units=80, boost_hz=1.5e9, l2_bytes=6 << 20, peak_flops_per_s={"float32": 1e13}
    )
    newer = replace(alike, architecture="New")
    assert (plain.spread, ()) == plain.spread_on(alike)
    wider, (why,) = plain.spread_on(newer)
    assert plain.spread < wider < 0.2
    assert "those steps ran on Old, none on New" in why
    assumed, (why,) = plain.spread_on(replace(alike, vendor="somebody"))
    assert assumed == 0.40
    assert why == "none of those steps ran on a device of somebody: the range is an assumption"


def test_the_last_lists_of_ops_are_remembered_and_older_ones_made_again():
    made = []
    remembered = RecentCache(lambda ops: made.append(ops) or len(made))
    lists = [(CONV,) * (n + 1) for n in range(KEPT + 1)]
    assert [remembered(lists[0]), remembered(lists[0]), remembered(lists[1])] == [1, 1, 2]
    assert remembered(list(lists[0])) == 3
    for case in lists[1:]:
        remembered(case)
    calls = len(made)
    assert calls + 1 == remembered(lists[0])
