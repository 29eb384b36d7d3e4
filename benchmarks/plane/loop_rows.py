"""The rows of the closed loop: the plane against an oracle, simple rules and users' own requests."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from benchmarks.plane.loop_jobs import NODE, SHARE, JobCost, MeasuredJob, oracle_cost, retry_cost, whole_node_cost
from benchmarks.results import BenchmarkRow, at_least, at_most
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import Job
from leadline.execution.clock import epoch_s

RULE = "× 1.5 on failure"
ROOM = "partition's maximum and a full node"
USED = "sum over attempts of nodes × accounted seconds, killed attempts included"
WEIGHED = f"{USED}, × the larger of the requested shares of a node's {NODE.cores} cores and of its memory"
SAVED = 40.0
"""Target for the saving in percent."""


@dataclass(frozen=True, slots=True)
class LoopRound:
    """Jobs that the plane managed from their first requests to their ends, by name."""

    truths: Mapping[str, MeasuredJob]
    first: Mapping[str, ResourceSpec]
    followed: Mapping[str, Job]

    @property
    def n(self) -> int:
        """Return the number of jobs."""
        return len(self.truths)

    @property
    def completed(self) -> float:
        """Return the share of completed jobs in percent."""
        return 100 * sum(job.state is JobState.COMPLETED for job in self.followed.values()) / self.n

    @property
    def oracle(self) -> JobCost:
        """Return the cost of one run of each job with a request for exactly its needs."""
        return sum(map(oracle_cost, self.truths.values()), JobCost())

    @property
    def retried(self) -> JobCost:
        """Return the cost of the first requests, raised by half after each failure."""
        return sum((retry_cost(self.truths[name], self.first[name]) for name in self.truths), JobCost())

    @property
    def whole_node(self) -> JobCost:
        """Return the cost of one run of each job on a whole node."""
        return sum(map(whole_node_cost, self.truths.values()), JobCost())

    @property
    def plane(self) -> JobCost:
        """Return the cost under the plane."""
        return sum(map(managed_cost, self.followed.values()), JobCost())

    @property
    def result_s(self) -> float:
        """Return the seconds from each job's first submission to its last end, summed: runs, kills and all waits."""
        return sum(_seconds_to_result(job) for job in self.followed.values())

    @property
    def slowdown(self) -> float:
        """Return the time of the last attempts ÷ that of the measuring runs, over completed jobs that never resume.

        A machine that is busier than in the measuring round makes the plane look worse than the computed rules.
        """
        pairs = [
            (managed_cost(msgspec.structs.replace(job, attempts=job.attempts[-1:])).node_s, self.truths[name].elapsed_s)
            for name, job in self.followed.items()
            if job.state is JobState.COMPLETED and not job.policy.resumes
        ]
        return sum(last_s for last_s, _ in pairs) / sum(need_s for _, need_s in pairs) if pairs else math.nan

    def rule_result_s(self, cost: JobCost) -> float:
        """Return the same seconds under a rule, whose attempts each wait as long as the plane's did on average."""
        waits = [
            epoch_s(attempt.started_at) - epoch_s(attempt.submitted_at)
            for job in self.followed.values()
            for attempt in job.attempts
            if attempt.started_at and attempt.submitted_at
        ]
        return cost.node_s + cost.attempts * (sum(waits) / len(waits) if waits else 0.0)


def managed_cost(job: Job) -> JobCost:
    """Return the cost of all attempts of a job, each with its own request."""
    total = JobCost()
    for attempt in job.attempts:
        if attempt.started_at and attempt.ended_at:
            total += JobCost.of(epoch_s(attempt.ended_at) - epoch_s(attempt.started_at), attempt.resources)
    return total


def _seconds_to_result(job: Job) -> float:
    submitted = [epoch_s(attempt.submitted_at) for attempt in job.attempts if attempt.submitted_at]
    ended = [epoch_s(attempt.ended_at) for attempt in job.attempts if attempt.ended_at]
    return max(ended) - min(submitted) if submitted and ended else 0.0


def small_request_rows(part: LoopRound) -> list[BenchmarkRow]:
    """Return the rows of the round whose first requests are far too small."""
    n, best, plane, rule = part.n, part.oracle, part.plane, part.retried
    return [
        at_least("loop: jobs that complete without help", part.completed, 95.0, "%", n=n,
                 how=f"{_jobs(part)}; {_attempts(part)}"),
        at_most("loop: node-time ÷ an oracle's, the plane", plane.node_s / best.node_s, 1.3, "times", n=n,
                baseline=rule.node_s / best.node_s, how=f"{USED}; baseline: {RULE}"),
        BenchmarkRow(f"loop: node-time ÷ an oracle's, {RULE}", rule.node_s / best.node_s, "times", n=n,
                     how="computed from the same needs; its limits are exact to the second, which favours it"),
        BenchmarkRow("loop: cost ÷ an oracle's, the plane", plane.cost_s / best.cost_s, "times", n=n,
                     baseline=rule.cost_s / best.cost_s, how=f"{WEIGHED}; baseline: {RULE}"),
        at_least(f"loop: cost saved against {RULE}", _saved(plane.cost_s, rule.cost_s), SAVED, "%", n=n,
                 baseline=_saved(best.cost_s, rule.cost_s), how=f"{WEIGHED}; baseline: the oracle's saving"),
        _time_row("loop", part),
        BenchmarkRow(f"loop, aside: cost saved against {ROOM}", _saved(plane.cost_s, part.whole_node.cost_s), "%", n=n,
                     baseline=_saved(rule.cost_s, part.whole_node.cost_s),
                     how=f"no target, as a full node is no user's request; baseline: {RULE}"),
    ]  # fmt: skip


def user_request_rows(part: LoopRound, ratios: Mapping[str, float]) -> list[BenchmarkRow]:
    """Return the rows of the round whose first requests are users' own."""
    n, best, plane, users = part.n, part.oracle, part.plane, part.retried
    drawn = sorted(ratios.values())
    short = sum(ratio <= 1 for ratio in drawn)
    how = (
        f"walltime requests by the ratios to need in MetaCentrum's trace, median {drawn[n // 2]:.3g} times, {short} of "
        f"{n} too short; memory by whole cores' shares of a node; raised by half after a kill"
    )
    return [
        at_least("loop, users' requests: jobs that complete without help", part.completed, 95.0, "%", n=n,
                 how=f"{how}; {_attempts(part)}"),
        at_least("loop, users' requests: cost saved", _saved(plane.cost_s, users.cost_s), SAVED, "%", n=n,
                 baseline=_saved(best.cost_s, users.cost_s), how=f"{how}; {WEIGHED}; baseline: the oracle's saving"),
        BenchmarkRow("loop, users' requests: cost ÷ an oracle's, the plane", plane.cost_s / best.cost_s, "times", n=n,
                     baseline=users.cost_s / best.cost_s, how=f"{WEIGHED}; baseline: users' requests"),
        _time_row("loop, users' requests", part),
    ]  # fmt: skip


def _time_row(name: str, part: LoopRound) -> BenchmarkRow:
    best_s = part.rule_result_s(part.oracle)
    return BenchmarkRow(
        f"{name}: time to the results ÷ an oracle's, the plane", part.result_s / best_s, "times", n=part.n,
        baseline=part.rule_result_s(part.retried) / best_s,
        how=f"from first submission to last end, kills and waits included; baseline: {RULE}, each attempt of which "
        "waits as long as the plane's did on average",
    )  # fmt: skip


def _saved(cost_s: float, baseline_s: float) -> float:
    return 100 * (1 - cost_s / baseline_s)


def _jobs(part: LoopRound) -> str:
    """Describe the jobs and the errors of their first requests."""
    lasted = sorted(truth.elapsed_s for truth in part.truths.values())
    times = [(part.first[name].walltime_s or 0.0) / truth.elapsed_s for name, truth in part.truths.items()]
    sizes = [(part.first[name].memory_bytes_per_node or 0) / truth.memory_bytes for name, truth in part.truths.items()]
    return (
        f"real training at {100 * SHARE:.0f} % of a core, {lasted[0]:.0f} to {lasted[-1]:.0f} s each; first request: "
        f"{sum(times) / part.n:.2f} of the time in whole minutes, {sum(sizes) / part.n:.2f} of the memory"
    )


def _attempts(part: LoopRound) -> str:
    """Describe how the attempts ended, and how busy the machine was."""
    return (
        f"attempts: {_endings(part.followed.values())}; complete runs took {part.slowdown:.2f} times the measuring runs"
    )


def _endings(jobs: Iterable[Job]) -> str:
    """Describe how the attempts ended."""
    counted = Counter(
        "ended by the plane for a larger one" if attempt.withdrawn else attempt.state.value
        for job in jobs
        for attempt in job.attempts
    )
    return ", ".join(f"{count} {ending}" for ending, count in counted.most_common())
