"""Starting a whole job on one machine: ``autobyte-launch -n 2 -s 2 python train.py``.

The launcher is the parent of one scheduler, of the servers, and of as many copies of the user's command as there
are workers. Decisions are pure: :mod:`~scheduler.launch.plan` says which processes there are and what each finds in
its environment, :mod:`~scheduler.launch.watch` says when they are told to end and what the job's exit code is.
:mod:`~scheduler.launch.supervisor` carries both out with one loop and no threads.

Two promises shape it. *No process outlives the job*: every node leads a process group of its own, groups are ended as
a whole, and a :mod:`~scheduler.launch.guard` ends them where the launcher itself was killed. *The exit code is that of
what failed first*: the nodes hear of a failure from the scheduler and end by themselves, in their own words; only those
that do not are terminated, and that never counts as a failure of theirs.
"""
