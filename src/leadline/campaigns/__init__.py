"""Campaigns: adaptive choice and execution of training runs for a model of an application.

The folder of a campaign holds a journal of the Intelligence Plane for this campaign alone (``plane.sqlite``). The
``Runner`` adds each affordable run to it as a job and drives a plane in its own process until no job is left. So the
folder is complete in itself, and a user's running ``leadline plane`` does not know of it.

The journal also holds the planned runs and the outcomes of all attempts. A run that is started again is another job. On
this machine runs are submitted one by one, as slots get free, to a scheduler in the same folder. On Slurm, runs with
equal requests are one group of jobs, which the plane submits as an array. ``RunAdvisor`` stores outcomes and decides:
a run whose node was lost is submitted again, and every other end is accepted.
"""
