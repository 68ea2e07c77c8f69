"""Benchmarks: Esker beside the embedded stores a Python program would otherwise use as a log.

    python -m bench.run      run everything, print one table, write one file into bench/results

`peers` wraps the other stores and `subject` our own, `measure` times and prints, `setting` leads
the columns round by turns. What is compared is in `append`, `read`, `durable`, `recovery`, `scale`,
`life`.

Rule 1: a peer gets its fastest configuration of the same durability, and it is written down.
Rule 2: every number is the best of several runs on fresh directories; noise only ever adds time.
        The columns take turns, so that it adds to all alike.
Rule 3: a number without its machine is worth nothing, so the results file says what it ran on.
"""
