"""``leadline campaign``: plan and make the runs from which time and memory are learned."""

from leadline.interfaces.cli.campaign_plan import plan
from leadline.interfaces.cli.campaign_runs import run
from leadline.interfaces.cli.campaign_status import status, stop
from leadline.interfaces.cli.verb import Verb

app = Verb(group=True, help="Plan cheap runs of an application under a budget, make them, and see where they stand.")
for command in (plan, run, status, stop):
    app.command()(command)
