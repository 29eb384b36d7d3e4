"""What is asked for: limits rounded as sites like them, within what a partition gives, with the reason."""

from dataclasses import replace

import pytest

from leadline.core.estimate import Interval
from leadline.core.jobs import ResourceSpec
from leadline.core.recommendation import Weights
from leadline.core.systems import Billing, BillingRule, Limits, NodeType, Partition
from leadline.core.units import GIB, HOUR_S
from leadline.recommend.requests import ask, round_walltime_s

NODE = NodeType("standard", cores=40, memory_bytes=192 * GIB)
CPU = Partition("cpu", NODE)
ONE = ResourceSpec(cores_per_task=4)


def test_the_walltime_is_rounded_up_and_the_sentence_says_what_decided():
    asked = ask(Interval(3000, 1500, 6000), None, ONE, CPU, 0.05)
    assert asked.resources.walltime_s == 6300.0
    assert asked.reason == "the accepted risk of 5 % decides the walltime (cost alone would take 19 %)"


def test_where_cost_decides_the_sentence_says_which_risk_is_cheapest():
    asked = ask(Interval(3000, 2900, 3100), None, ONE, CPU, 0.05)
    assert asked.reason == "cost decides the walltime (killing 0.45 % of runs costs least; 5 % are accepted)"


def test_memory_has_its_own_half_of_the_sentence():
    asked = ask(Interval(3000, 1500, 6000), Interval(8 * GIB, 4 * GIB, 15.5 * GIB), ONE, CPU, 0.05)
    assert asked.resources.memory_bytes_per_node == 16 * GIB
    assert "decides the walltime and the memory (cost alone would take 19 % and " in asked.reason


def test_rounding_up_does_not_pass_the_partitions_limit():
    partition = replace(CPU, limits=Limits(max_walltime_s=3500))
    assert ask(Interval(3400, 3350, 3450), None, ONE, partition, 0.05).resources.walltime_s == 3500


def test_a_limit_that_cannot_hold_the_risk_is_overstepped_so_that_it_is_refused():
    partition = replace(CPU, limits=Limits(max_walltime_s=HOUR_S))
    assert ask(Interval(3500, 1500, 8000), None, ONE, partition, 0.05).resources.walltime_s > HOUR_S


def test_memory_that_is_charged_is_asked_for_more_sparingly():
    billing = Billing(BillingRule.CORE_HOURS, "SU", core_hour=1.0, memory_bytes_per_core=2 * GIB)
    memory = Interval(50 * GIB, 45 * GIB, 55 * GIB)
    charged = ask(None, memory, ONE, replace(CPU, billing=billing), 0.2).resources
    paid_for = ask(None, memory, replace(ONE, cores_per_task=40), replace(CPU, billing=billing), 0.2).resources
    assert charged.memory_bytes_per_node < paid_for.memory_bytes_per_node


def test_a_dearer_kill_asks_for_more_and_what_is_not_known_is_left_to_the_site():
    wide = Interval(30000, 27000, 33000)
    limits = [ask(wide, None, ONE, CPU, 0.3, Weights(kill, 1.0)).resources.walltime_s for kill in (0.2, 10.0)]
    assert limits[0] < limits[1]
    assert None is ask(wide, None, ONE, CPU, 0.05).resources.memory_bytes_per_node
    assert ask(None, None, ONE, CPU, 0.05).reason == ""


@pytest.mark.parametrize(("asked", "rounded"), [(1, 300), (301, 600), (3601, 4500), (43201, 46800)])
def test_walltimes_are_rounded_up_as_schedulers_like_them(asked, rounded):
    assert rounded == round_walltime_s(asked)
