"""Queues: jobs that many workers share. Each is done at least once, and none is lost.

A queue is a topic, and its jobs are the topic's records. What is added is a second log, of leases:
who was given which job, until when, and what became of it. The jobs themselves are never touched;
so a queue costs an append to put, and two small appends to claim and to ack, however large the
jobs are and however many wait.

    leases.py    the state of one shard, and how events change it. Pure: no file, no clock
    lane.py      one shard: that state, its log (storage/leases.py), and the lock and mutex on both
    claiming.py  which jobs a claim gets: given back before fresh, by time and by key
    crew.py      who the workers are, and whether they live
    cohort.py    claims that come together are served together
    putting.py   jobs go in, from whatever process
    moving.py    jobs that go to another topic, exactly once; dead.py: the dead, looked after
    job.py       a job in hand; work.py: leases that are renewed while a handler runs
    history.py   who held a job when; fresh.py: which jobs to come wait for their time
    queue.py     the object users hold; opening.py: how it comes to be

Many processes on one machine share a queue, without a server. Every operation takes the kernel's
mutex of one shard, reads what others have appended since it last looked, decides on what is then
the truth, appends one frame, and gives the mutex back. There is no leader, and nobody has to be
running for the others to go on. Whoever dies with the mutex leaves it to the next one, and at worst
half a frame, which was never acted on.

    Lane.__enter__    our threads' lock, the kernel's mutex ─► LeaseLog.more ─► State.apply
    claim, _settle    decide, on the State as it is now (leases.py: pure)
    Lane.commit       LeaseLog.append: one frame ─► State.apply
    Lane.__exit__     the mutex is given back; then Lane.settle syncs, where an ack promises that

What is promised:

* At most one token is valid for a job at any time, and only the valid one acks, extends or gives
  back. A worker that was thought dead and wakes up is told StaleLease, and has done nothing.
* A job that was acked is never handed out again. In class `fsync` not even after a power cut; in
  class `disk` a power cut takes back the acks of the last `sync_interval`, as it takes appends.
* A job that is not acked comes again: when its lease runs out, and at once if its worker has died
  or the machine was restarted. Nobody has to look after that: it is seen when somebody claims.
* Leases run by the monotonic clock of one boot. Setting the clock moves none of them.
* Damage to a log of leases is told, and may bring back jobs that were done; it never hides one.

Rule 1: an event is written before anybody acts on it. Rule 2: state changes by events alone, so
that all processes that have read the same log agree.
"""
