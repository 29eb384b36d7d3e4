"""What to do with one attempt of a job: pure, so that every decision can be shown, tested and made again."""

from leadline.core.jobs import JobState
from leadline.core.plane import Action, Decision, Situation
from leadline.execution.plane.ended import after_end
from leadline.execution.plane.live import made_useless, while_running, while_waiting
from leadline.execution.plane.needs import Sizing, View, by_risk


def decide(situation: Situation, sizing: Sizing = by_risk) -> Decision:
    """Return the decision on ``situation.attempt``; limits are chosen by ``sizing``.

    RESUBMIT and MOVE of an attempt that is at a scheduler mean to withdraw it first. GIVE_UP is said of an attempt
    that ended; copies of it that are left are then withdrawn.
    """
    view, state = View(situation, sizing), situation.attempt.state
    if situation.job.closed:
        return Decision(Action.KEEP, f"the job is settled as {situation.job.state.value}: nothing is decided any more")
    if state is JobState.COMPLETED:
        return Decision(Action.FINISH, "it is done", evidence={"spent_node_s": situation.spent_node_s})
    if not situation.attempt.live:
        return Decision(Action.GIVE_UP, "its user took it back") if situation.job.cancelled else after_end(view)
    return made_useless(view) or _LIVE[state](view)


def _in_silence(_: View) -> Decision:
    return Decision(Action.KEEP, "its scheduler does not say what became of it, and silence says nothing")


_LIVE = {JobState.PENDING: while_waiting, JobState.RUNNING: while_running, JobState.UNKNOWN: _in_silence}
