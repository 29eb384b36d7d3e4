"""Slow verbs: their steps are heard, and what they wait for can be ended."""

import threading
import time

from leadline.app.background import end_verbs, hear_steps, report_step
from leadline.execution.processes import run_process


def test_a_step_is_heard_by_the_innermost_listener_of_its_thread():
    outer, inner = [], []
    report_step("before")
    with hear_steps(outer.append):
        report_step("first")
        with hear_steps(inner.append):
            report_step("second")
        thread = threading.Thread(target=report_step, args=("elsewhere",))
        thread.start()
        thread.join()
        report_step("third")
    report_step("after")
    assert (outer, inner) == (["first", "third"], ["second"])


def test_a_verb_that_waits_for_a_process_goes_on_when_verbs_are_ended():
    ended = []
    # The shell starts a process that would keep its output open.
    waiting = threading.Thread(target=lambda: ended.append(run_process(["sh", "-c", "sleep 600 & wait"])))
    waiting.start()
    while waiting.is_alive():
        end_verbs()
        time.sleep(0.05)
    assert ended[0].returncode == -9
    end_verbs()
