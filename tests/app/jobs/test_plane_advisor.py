"""Other places of a job: which would take it, with which request, for how long and at what price."""

import math
from dataclasses import replace

import pytest

from leadline.app.jobs.plane_advisor import (
    LocalMemory,
    PlaneAdvisor,
    alternative_request,
    have_same_hardware,
    read_local_memory,
)
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.hardware import Device, DeviceKind
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Action, Attempt, FailureCause, Job, Place, Policy, Situation
from leadline.core.processes import CompletedProcess
from leadline.core.progress import REPORTED, LoopProgress, Progress
from leadline.core.runs import Measurement
from leadline.core.systems import UNLISTED_NODES, Billing, BillingRule, Limits, NodeType, Partition, System
from leadline.core.units import GIB, HOUR_S, MIB
from leadline.execution.clock import epoch_s
from leadline.execution.plane.decide import decide
from leadline.execution.wrapper.outcome import JobOutcome
from leadline.history.sqlite import SqliteHistory
from leadline.training.shipped_files import shipped_live_table

NODE = NodeType("n", cpu_model="AMD 7763", cores=64, memory_bytes=256 * GIB)
GPUS = NodeType("g", cpu_model="AMD 7763", cores=64, memory_bytes=256 * GIB, device="A100", gpus=4)
LARGE = replace(NODE, name="large", memory_bytes=1024 * GIB)
OTHER = NodeType("o", cpu_model="Intel 6148", cores=40, memory_bytes=192 * GIB)
DOLLARS = Billing(BillingRule.CORE_HOURS, "USD", core_hour=0.01)


def partition(name, node, hours, billing=DOLLARS):
    return Partition(name, node, limits=Limits(max_walltime_s=hours * HOUR_S), billing=billing)


REEF = System("reef", "R", "hpc", "production", "slurm", (
    partition("short", NODE, 4), partition("long", NODE, 48), partition("gpu", GPUS, 24), partition("large", LARGE, 24),
))  # fmt: skip
ATOLL = System("atoll", "A", "hpc", "production", "slurm", (
    partition("cpu", OTHER, 24, replace(DOLLARS, currency="SU")), partition("gpu", replace(GPUS, device="H100"), 24),
))  # fmt: skip
SHORT, LONG, LARGE_MEMORY = Place("reef", "short"), Place("reef", "long"), Place("reef", "large")
AT_HOME, ABROAD, HERE = Place("reef", "gpu"), Place("atoll", "gpu"), Place("local")
ASKED = ResourceSpec(cores_per_task=4, memory_bytes_per_node=16 * GIB, walltime_s=2.0 * HOUR_S)
START = "2026-01-05T10:00:00+00:00"
NOW_S = epoch_s(START)
TAKES = Interval(3600.0, 3000.0, 4400.0)
WAIT = Interval(60.0, 0.0, 120.0)


class Catalog:
    """Two systems, and GPUs of 40 and 80 GiB."""

    def system(self, name):
        try:
            return {"reef": REEF, "atoll": ATOLL}[name]
        except KeyError as error:
            raise UnknownName("system", name, ["reef", "atoll"]) from error

    def device(self, name):
        return Device(name, "NVIDIA", DeviceKind.GPU, memory_bytes={"A100": 40 * GIB, "H100": 80 * GIB}[name])


def situation(places, *, asked=ASKED, state=JobState.PENDING, predicted=None, total=TAKES, resumes=False, **more):
    attempt = Attempt("a", "j", 1, places[0], asked, state=state, submitted_at=START,
                      ended_at=START if state.final else None)  # fmt: skip
    job = Job("j", JobSpec("train", ("true",), asked), Policy(tuple(places), resumes=resumes), attempts=(attempt,),
              predicted=predicted)  # fmt: skip
    return Situation(job, attempt, NOW_S, total_s=total, **more)


def elsewhere(here=lambda: LocalMemory(64 * GIB, 24 * GIB)):
    return PlaneAdvisor(Catalog(), None, shipped_live_table(), here, Foretells(None, WAIT))


def test_targets_that_accept_the_job_are_listed_with_wait_and_price():
    (found,) = elsewhere().alternatives(situation([SHORT, LONG]))
    assert (found.place, found.resources, found.wait_s, found.elapsed_s) == (LONG, ASKED, WAIT, TAKES)
    assert (pytest.approx(found.cost), found.currency) == (0.04, "USD")


@pytest.mark.parametrize(
    ("place", "asked"),
    [(Place("reef", "gone"), ASKED), (LONG, replace(ASKED, cores_per_task=65)),
     (LONG, replace(ASKED, gpus_per_node=1)), (LONG, replace(ASKED, memory_bytes_per_node=300 * GIB)),
     (LONG, replace(ASKED, walltime_s=49.0 * HOUR_S)), (HERE, replace(ASKED, memory_bytes_per_node=65 * GIB))],
)  # fmt: skip
def test_a_place_that_would_refuse_the_job_is_none(place, asked):
    here = situation([SHORT, place], asked=asked, total=None)
    assert elsewhere().alternatives(here) == ()


def test_a_limit_is_lowered_to_the_allowed_one_if_it_is_enough_or_the_job_resumes():
    long = replace(ASKED, walltime_s=20.0 * HOUR_S)
    lowered = replace(ASKED, walltime_s=4.0 * HOUR_S)
    assert lowered == alternative_request(situation([LONG, SHORT], asked=long), 4.0 * HOUR_S, None)
    assert alternative_request(situation([LONG, SHORT], asked=long, total=None), 4.0 * HOUR_S, None) is None
    slow = Interval(6.0 * HOUR_S, 5.0 * HOUR_S, 7.0 * HOUR_S)
    assert alternative_request(situation([LONG, SHORT], asked=long, total=slow), 4.0 * HOUR_S, None) is None
    assert lowered == alternative_request(
        situation([LONG, SHORT], asked=long, total=slow, resumes=True), 4.0 * HOUR_S, None
    )


def test_the_time_on_other_nodes_is_known_only_if_predicted():
    known = Estimate(Target("x", "atoll", "cpu"), "roofline", Basis(Tier.SPECS), elapsed_s=Interval(9.0, 8.0, 10.0))
    at = Place("atoll", "cpu")
    (found,) = elsewhere().alternatives(situation([SHORT, at]))
    assert (found.elapsed_s, found.cost) == (None, None), "another unit cannot be compared"
    (found,) = elsewhere().alternatives(situation([SHORT, at], predicted=known))
    assert Interval(9.0, 8.0, 10.0) == found.elapsed_s


def test_nodes_of_one_type_are_alike_even_with_an_unknown_processor():
    unknown, again = NodeType("n", cores=64), NodeType("n", cores=64, memory_bytes=GIB)
    assert alike(unknown, again, at_home=True)
    assert not alike(unknown, again)
    assert not alike(unknown, replace(again, name="m"), at_home=True)
    assert not alike(*[NodeType(UNLISTED_NODES, cores=64)] * 2, at_home=True)
    assert alike(NODE, replace(LARGE, name="x"))
    assert not have_same_hardware(Partition("p", unknown), None)


def alike(first, second, **more):
    return have_same_hardware(Partition("p", first), Partition("q", second), **more)


def test_a_job_that_ran_out_of_host_memory_moves_to_where_its_need_is_met():
    asked = replace(ASKED, memory_bytes_per_node=256 * GIB)
    ended = situation([SHORT, LONG, LARGE_MEMORY], asked=asked, state=JobState.OUT_OF_MEMORY, elapsed_s=60.0,
                      node_memory_bytes=256 * GIB, cause=FailureCause.HOST_MEMORY)  # fmt: skip
    ended = replace(ended, alternatives=elsewhere().alternatives(ended))
    decided = decide(ended)
    assert (decided.action, decided.place) == (Action.MOVE, LARGE_MEMORY)
    assert decided.resources.memory_bytes_per_node >= 1.1 * 256 * GIB


def test_a_job_that_reached_the_longest_limit_moves_to_where_it_is_longer():
    asked = replace(ASKED, walltime_s=4.0 * HOUR_S)
    ended = situation([SHORT, LONG], asked=asked, state=JobState.TIMEOUT, total=None, elapsed_s=4.0 * HOUR_S,
                      allowed_s=4.0 * HOUR_S, cause=FailureCause.WALLTIME)  # fmt: skip
    ended = replace(ended, alternatives=elsewhere().alternatives(ended))
    decided = decide(ended)
    assert (decided.action, decided.place) == (Action.MOVE, LONG)
    assert decided.resources.walltime_s >= 1.1 * 4 * HOUR_S


def test_a_job_whose_gpu_was_too_small_moves_to_a_larger_one():
    asked = replace(ASKED, gpus_per_node=1)
    ended = situation([AT_HOME, ABROAD], asked=asked, state=JobState.FAILED, cause=FailureCause.GPU_MEMORY,
                      gpu_memory_bytes=40 * GIB)  # fmt: skip
    found = elsewhere().alternatives(ended)
    assert [(one.place, one.gpu_memory_bytes) for one in found] == [(ABROAD, 80 * GIB)]
    assert Action.MOVE is decide(replace(ended, alternatives=found)).action


class Foretells:
    """Waits that a test chose (implements ``Waits``)."""

    def __init__(self, here, there):
        self.here, self.there = here, there

    def predicted(self, spec, place):  # noqa: ARG002 - the port's
        return self.there

    def remaining(self, attempt, spec, now_s):  # noqa: ARG002 - the port's
        return self.here

    def forget(self, attempt):
        """Nothing is kept."""


@pytest.mark.parametrize(("here_s", "action"), [(40_000.0, Action.MOVE), (900.0, Action.KEEP)])
def test_a_waiting_job_moves_to_the_target_where_it_ends_sooner(tmp_path, here_s, action):
    waits = Foretells(Interval(here_s, 0.8 * here_s, 1.2 * here_s), WAIT)
    advisor = PlaneAdvisor(Catalog(), SqliteHistory(tmp_path / "h"), shipped_live_table(), waits=waits)
    known = Estimate(Target("x", "reef", "short"), "roofline", Basis(Tier.SPECS), elapsed_s=TAKES)
    here = situation([SHORT, LONG], predicted=known)
    expected = advisor.expect(here.job, here.attempt, None, now_s=NOW_S)
    full = replace(here, total_s=expected.total_s, remaining_wait_s=expected.remaining_wait_s,
                   alternatives=expected.alternatives, cost_per_s=expected.cost_per_s)  # fmt: skip
    assert action is decide(full).action


def test_a_resumed_job_is_expected_to_do_what_is_left_of_its_work(tmp_path):
    advisor = PlaneAdvisor(Catalog(), SqliteHistory(tmp_path / "h"), shipped_live_table())
    known = Estimate(Target("x", "reef", "short"), "roofline", Basis(Tier.SPECS), elapsed_s=TAKES)
    before = situation([SHORT], predicted=known, resumes=True)
    first = replace(before.attempt, state=JobState.TIMEOUT, ended_at=START, done_share=0.75)
    second = Attempt("b", "j", 2, SHORT, ASKED, state=JobState.RUNNING, submitted_at=START, started_at=START)
    resumed = replace(before.job, attempts=(first, second))
    rest = advisor.expect(resumed, replace(second, state=JobState.PENDING, started_at=None), None, now_s=NOW_S).total_s
    assert (rest.low, rest.point, rest.high) == (750.0, 900.0, 4400.0), "its checkpoint may be older"
    whole = replace(resumed, attempts=(replace(first, done_share=1.0), second))
    assert advisor.expect(whole, second, None, now_s=NOW_S).total_s.point > 0
    steps = LoopProgress("step", 50, 50.0, length=1000, first_s=(1.0,) * 8, sampled_s=(1.0,) * 50)
    progress = Progress(REPORTED, (steps,), startup_s=1.0, last_s=51.0, steps=801, total=1000)
    elapsed = {"elapsed_s": Measurement(51.0, "s", "clock")}
    wrote = JobOutcome(JobState.RUNNING, START, "n", ("true",), measured=elapsed, progress=progress)
    unpredicted = replace(resumed, predicted=None)
    total_s = advisor.expect(unpredicted, second, wrote, now_s=NOW_S + 51.0).total_s
    assert 225 < total_s.point < 290
    once = replace(unpredicted, policy=replace(unpredicted.policy, resumes=False))
    assert advisor.expect(once, second, wrote, now_s=NOW_S + 51.0).total_s.point > 900


@pytest.mark.parametrize(
    ("target", "place", "holds"),
    [(("reef", "short"), SHORT, True), (("reef", "short"), LONG, True),
     (("reef", "short"), Place("atoll", "cpu"), False),
     (("reef", "short"), AT_HOME, False), (("reef", "short"), Place("reef"), True), ((None, None), HERE, True),
     ((None, None), SHORT, False), (("reef", "short"), HERE, False)],
)  # fmt: skip
def test_a_prediction_for_other_nodes_is_not_used(tmp_path, target, place, holds):
    advisor = PlaneAdvisor(Catalog(), SqliteHistory(tmp_path / "h"), shipped_live_table())
    known = Estimate(Target("x", *target), "roofline", Basis(Tier.SPECS), elapsed_s=TAKES)
    one = situation([place], predicted=known)
    expected = advisor.expect(one.job, one.attempt, None, now_s=NOW_S)
    assert (TAKES if holds else None) == expected.total_s


def test_the_expectation_has_the_memory_of_the_gpu_and_the_node(tmp_path):
    advisor = PlaneAdvisor(
        Catalog(), SqliteHistory(tmp_path / "h"), shipped_live_table(), lambda: LocalMemory(64 * GIB, 24 * GIB)
    )
    figures = []
    for place in (HERE, AT_HOME):
        one = situation([place], asked=replace(ASKED, gpus_per_node=1))
        expected = advisor.expect(one.job, one.attempt, None, now_s=NOW_S)
        figures.append((expected.node_memory_bytes, expected.gpu_memory_bytes))
    assert figures == [(64 * GIB, 24 * GIB), (256 * GIB, 40 * GIB)]


def test_the_smallest_gpu_of_this_machine_counts_and_none_without_a_driver():
    def driver(argv, **_):
        assert argv[0] == "nvidia-smi"
        return CompletedProcess(0, "24576\n81559\n", "")

    def none(argv, **_):
        raise InvalidInput(argv[0])

    assert read_local_memory(driver).gpu_memory_bytes == 24576 * MIB
    assert read_local_memory(none).gpu_memory_bytes is None
    assert math.inf > read_local_memory(none).memory_bytes > 0
