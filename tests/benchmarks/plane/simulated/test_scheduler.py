"""The simulated scheduler: the contract, and its failures turned on."""

from dataclasses import replace

import pytest

from benchmarks.plane.simulated.cluster import SimulatedCluster, SimulatedNode, SimulatedPartition
from benchmarks.plane.simulated.scheduler import InjectedFailures, SimulatedScheduler
from benchmarks.plane.simulated.site import JobBehaviour, SimulatedSite
from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.execution.clock import ManualClock
from leadline.execution.schedulers.port import RequestRefused, Submission, SubmissionUncertain
from leadline.testing.scheduler_contract import SchedulerContract

GIB = 2**30


def two_nodes(clock, behaves):
    nodes = tuple(SimulatedNode(name, 4, 1, 4 * GIB) for name in ("one", "two"))
    return SimulatedSite(
        SimulatedCluster(nodes, (SimulatedPartition("short", ("one", "two"), 3600, 600),)), clock, behaves
    )


class TestContract(SchedulerContract):
    @pytest.fixture
    def scheduler(self):
        self.clock = ManualClock()
        return SimulatedScheduler(two_nodes(self.clock, self.behaves))

    def again(self, scheduler):
        return SimulatedScheduler(scheduler.site)

    def pass_time(self, seconds):
        self.clock.sleep(seconds)

    def command(self, seconds, exit_code=0):
        return ("sleep", str(seconds), str(exit_code))

    def behaves(self, submission, position):
        _, seconds, exit_code = submission.spec.command
        return JobBehaviour(max(0.1, float(seconds)), exit_code=int(exit_code))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def failures():
    return InjectedFailures()


@pytest.fixture
def does():
    """What each key's job does; a minute's run where nothing is said."""
    return {}


@pytest.fixture
def scheduler(clock, failures, does):
    site = two_nodes(clock, lambda submission, position: does.get(submission.keys[position], JobBehaviour()))
    return SimulatedScheduler(site, failures)


def job(key, *, indices=(), most=None, after=(), **resources):
    resources.setdefault("walltime_s", 300.0)
    spec = JobSpec(key, ("train",), ResourceSpec(**resources))
    return Submission(key, spec, indices=tuple(indices), most=most, after=after)


def state(scheduler, one):
    return scheduler.query([one])[one].state


def test_time_passes_as_the_clock_is_turned(scheduler, clock):
    begin_s = clock.now_s()
    one = scheduler.submit(job("one", cores_per_task=4, nodes=2))
    two = scheduler.submit(job("two", nodes=2, cores_per_task=4))

    assert [state(scheduler, one), state(scheduler, two)] == [JobState.RUNNING, JobState.PENDING]
    assert begin_s + 300 == scheduler.query([two])[two].expected_start_s
    clock.sleep(1000)
    ended = scheduler.account([one, two])
    assert [begin_s + 60, begin_s + 120] == [ended[one].ended_s, ended[two].ended_s]
    assert begin_s + 60 == ended[two].started_s


def test_a_clock_that_is_set_back_makes_nothing_happen_twice(scheduler, clock):
    one = scheduler.submit(job("one"))
    clock.sleep(60)
    assert JobState.COMPLETED is state(scheduler, one)
    clock.jump_s = -3600

    assert JobState.COMPLETED is state(scheduler, one)
    two = scheduler.submit(job("two"))
    clock.jump_s = 0
    clock.sleep(60)
    assert JobState.COMPLETED is state(scheduler, two)


def test_a_refused_job_is_not_stored(scheduler, failures):
    failures.refuses = "the account is empty"
    with pytest.raises(RequestRefused, match="account is empty"):
        scheduler.submit(job("one"))
    failures.refuses = ""

    assert scheduler.find(["one"]) == {}
    with pytest.raises(RequestRefused, match="at most 3600 s"):
        scheduler.submit(job("long", walltime_s=4000.0))


def test_a_hanging_site_accepts_and_reports_nothing(scheduler, failures):
    one = scheduler.submit(job("one"))
    failures.hangs = True
    with pytest.raises(SubmissionUncertain, match="look up key two"):
        scheduler.submit(job("two"))
    for ask in (scheduler.find, scheduler.query, scheduler.account, scheduler.reports, scheduler.cancel):
        with pytest.raises(SchedulerUnreachable):
            ask([one])
    failures.hangs = False

    assert {"one": one} == scheduler.find(["one", "two"])


def test_a_lost_answer_leaves_one_job_that_is_found_by_its_key(scheduler, failures, clock):
    failures.loses_answers = True
    with pytest.raises(SubmissionUncertain):
        scheduler.submit(job("now"))
    failures.late_s = 30.0
    with pytest.raises(SubmissionUncertain):
        scheduler.submit(job("late"))
    failures.loses_answers = False

    assert {"now"} == set(scheduler.find(["now", "late"]))
    clock.sleep(30)
    found = scheduler.find(["now", "late"])
    assert {"now", "late"} == set(found)
    assert found["late"] == scheduler.submit(job("late"))
    assert len(scheduler.site.jobs) == 2


def test_a_job_that_needs_more_memory_than_requested_is_killed_halfway(scheduler, does, clock):
    does["plain"] = JobBehaviour(100, memory_bytes=2 * GIB)
    does["hidden"] = replace(does["plain"], hides_oom=True)
    ids = [scheduler.submit(job(key, memory_bytes_per_node=GIB)) for key in ("plain", "hidden")]
    clock.sleep(50)
    plain, hidden = (scheduler.query(ids)[one] for one in ids)

    assert (
        plain.state, plain.signal, plain.elapsed_s, plain.memory_bytes
    ) == (JobState.OUT_OF_MEMORY, 125, 50.0, GIB)  # fmt: skip
    assert (hidden.state, hidden.exit_code) == (JobState.FAILED, 1)
    assert "OUT_OF_MEMORY" in hidden.evidence[0]
    assert JobState.RUNNING is scheduler.reports(["hidden"])["hidden"].state


def test_a_job_is_killed_at_its_limit(scheduler, does, clock):
    does["one"] = JobBehaviour(1000)
    one = scheduler.submit(job("one"))
    clock.sleep(300)

    assert (scheduler.query([one])[one].state, scheduler.query([one])[one].elapsed_s) == (JobState.TIMEOUT, 300.0)


def test_a_node_that_fails_takes_its_jobs_with_it_and_runs_none_until_it_is_repaired(scheduler, clock):
    one, two = (scheduler.submit(job(key, cores_per_task=4)) for key in ("one", "two"))
    scheduler.site.fail_node("one")
    three = scheduler.submit(job("three", cores_per_task=4))
    four = scheduler.submit(job("four", cores_per_task=4))
    both = scheduler.submit(job("both", nodes=2, cores_per_task=4))

    assert [state(scheduler, one), state(scheduler, two)] == [JobState.NODE_FAIL, JobState.RUNNING]
    assert JobState.RUNNING is scheduler.reports(["one"])["one"].state
    clock.sleep(60)
    assert [scheduler.query([each])[each].node for each in (three, four)] == ["two", None]
    assert scheduler.forecast_start_s(job("wide", nodes=2, cores_per_task=4)) is None
    scheduler.site.repair_node("one")
    assert scheduler.query([four])[four].node == "one"
    clock.sleep(200)
    assert JobState.COMPLETED is state(scheduler, both)


def test_a_preempted_job_is_reported_as_preempted(scheduler):
    one = scheduler.submit(job("one"))
    scheduler.site.end(scheduler.site.of([one]), JobState.PREEMPTED, "a better one came")

    assert (state(scheduler, one), scheduler.query([one])[one].reason) == (JobState.PREEMPTED, "a better one came")


def test_the_accounting_may_be_late_or_away(scheduler, failures, clock):
    failures.accounting_late_s = 400
    one = scheduler.submit(job("one"))
    clock.sleep(60)
    assert scheduler.account([one]) == {}
    clock.sleep(310)
    assert {**scheduler.query([one]), **scheduler.account([one]), **scheduler.find(["one"])} == {}
    clock.sleep(100)
    assert JobState.COMPLETED is scheduler.account([one])[one].state
    failures.no_accounting = True

    assert {**scheduler.account([one]), **scheduler.find(["one"])} == {}
    two = scheduler.submit(job("two"))
    clock.sleep(60)
    assert JobState.COMPLETED is scheduler.account([two])[two].state


def test_a_user_may_lower_a_running_limit_and_raise_a_waiting_one_only(scheduler, failures, does, clock):
    does["one"] = JobBehaviour(1000)
    one = scheduler.submit(job("one", nodes=2, cores_per_task=4))
    two = scheduler.submit(job("two", nodes=2, cores_per_task=4))
    scheduler.change_walltime(two, 1200.0)
    for refused in ((one, 1200.0), (two, 4000.0), ("99", 10.0)):
        with pytest.raises(RequestRefused):
            scheduler.change_walltime(*refused)
    clock.sleep(100)
    scheduler.change_walltime(one, 50.0)

    assert (scheduler.query([one])[one].state, scheduler.query([one])[one].elapsed_s) == (JobState.TIMEOUT, 100.0)
    assert (state(scheduler, two), scheduler.query([two])[two].walltime_s) == (JobState.RUNNING, 1200.0)
    failures.fixed_limits = True
    with pytest.raises(RequestRefused):
        scheduler.change_walltime(two, 60.0)


def test_no_more_elements_of_an_array_run_at_once_than_it_may(scheduler, clock):
    array = scheduler.submit(job("array", indices=(3, 5, 8), most=2))
    assert [one.state for one in scheduler.query([array]).values()] == [
        JobState.RUNNING,
        JobState.RUNNING,
        JobState.PENDING,
    ]
    assert scheduler.query([f"{array}_8"])[f"{array}_8"].reason == "JobArrayTaskLimit"
    clock.sleep(60)

    assert JobState.RUNNING is state(scheduler, f"{array}_8")
