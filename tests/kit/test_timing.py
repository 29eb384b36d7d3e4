"""Timing by a hand-turned clock, and by events that keep the contract of torch's."""

import pytest

pytest.importorskip("torch")

from leadline.kit.timing import Timer, TimingLimits, quantile


class Device:
    """A GPU in small: work is queued at once and done later; events are stamped by the device's own clock.

    As with ``torch.cuda.Event``, the time between two events is not known before the device was waited for.
    """

    def __init__(self, launch_s, work_s):
        self.host_s = self.device_s = 0.0
        self.launch_s, self.work_s = launch_s, iter(work_s)
        self.done = []
        self.steps = 0

    def step(self):
        self.steps += 1
        self.host_s += self.launch_s
        self.device_s = max(self.device_s, self.host_s) + next(self.work_s)

    def wait(self):
        self.host_s = max(self.host_s, self.device_s)
        self.done = [True for _ in self.done]

    def event(self):
        device = self

        class Event:
            def record(self):
                self.at_s, self.number = max(device.device_s, device.host_s), len(device.done)
                device.done.append(False)

            def elapsed_time(self, later):
                if not (device.done[self.number] and device.done[later.number]):
                    raise RuntimeError("the event has not been recorded yet")
                return (later.at_s - self.at_s) * 1e3

        return Event()


def timed(device, limits):
    timer = Timer("cpu", limits, clock=lambda: device.host_s)
    timer.event, timer.wait = device.event, device.wait
    return timer.time(device.step), timer


def steady(step_s, first_s=2.0):
    yield first_s
    while True:
        yield step_s


def test_a_steady_step_is_its_median_without_the_slow_first_one():
    times, timer = timed(Device(1e-4, steady(0.02)), TimingLimits(1.0, 0.5, 5))
    assert times["step_s"] == pytest.approx(0.02, rel=0.01)
    assert times["first_step_s"] == pytest.approx(2.0, rel=0.01)
    assert (times["warm_up_steps"], times["steady"], times["samples"]) == (3, True, 25)
    assert times["timed_s"] == pytest.approx(0.5, rel=0.02)
    assert timer.stepping_s == pytest.approx(2.0 + 2 * 0.02 + 0.5, rel=0.02)


def test_host_and_device_are_timed_separately():
    times, _ = timed(Device(1e-3, steady(0.02)), TimingLimits(1.0, 0.5, 5))
    assert times["host_step_s"] == pytest.approx(1e-3, rel=0.01)
    bound, _ = timed(Device(0.02, steady(1e-3)), TimingLimits(1.0, 0.5, 5))
    assert bound["step_s"] == pytest.approx(0.02, rel=0.06)  # the device waits for the host


def test_short_steps_are_timed_several_at_once():
    times, _ = timed(Device(1e-6, steady(1e-5, first_s=1e-4)), TimingLimits(1.0, 0.1, 5))
    assert times["steps_a_sample"] == 91  # 1 ms of a step and its launch
    assert times["step_s"] == pytest.approx(1e-5, rel=0.01)


@pytest.mark.parametrize(("step_s", "samples"), [(0.1, 5), (0.7, 5), (0.9, 3), (10.0, 3)])
def test_a_long_step_gets_the_fewest_samples(step_s, samples):
    device = Device(1e-4, steady(step_s, first_s=step_s))
    times, _ = timed(device, TimingLimits(1.0, 0.5, 5))
    assert (samples, 3 + samples) == (times["samples"], device.steps)


def test_a_step_that_never_settles_is_marked():
    def wavering():
        while True:
            yield from (0.1, 0.3)

    times, _ = timed(Device(1e-4, wavering()), TimingLimits(1.0, 0.5, 5))
    assert not times["steady"]
    assert times["step_quantiles_s"][0] == pytest.approx(0.1, rel=0.01)
    assert times["step_quantiles_s"][-1] == pytest.approx(0.3, rel=0.01)


def test_a_cpu_is_timed_by_the_host_clock():
    clock = Device(0.004, steady(0.0, first_s=0.0))
    times = Timer("cpu", TimingLimits(1.0, 0.1, 5), clock=lambda: clock.host_s).time(clock.step)
    assert [pytest.approx(0.004)] * 7 == times["step_quantiles_s"]


def test_meters_are_read_before_the_first_sample_and_after_each_block():
    device = Device(1e-4, steady(0.02))
    timer = Timer("cpu", TimingLimits(1.0, 0.5, 5), clock=lambda: device.host_s)
    timer.event, timer.wait = device.event, device.wait
    steps = []
    timer.time(device.step, lambda: steps.append(device.steps))
    assert steps == [3, 8, 13, 18, 23, 28]


def test_quantiles_interpolate_between_neighbors():
    assert [quantile([1, 2, 3], share) for share in (0, 0.25, 0.5, 1)] == [1, 1.5, 2, 3]
