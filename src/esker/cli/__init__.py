"""The command line. The only room that talks to a terminal.

    main.py            arguments, exit codes, errors as one line on stderr
    commands.py        what each command does, with the public API
    spark.py           `esker spark`: a command for each job
    demo.py            `esker demo`: kill a producer again and again, and check its own ack lists
    demo_producer.py   the producer that is killed, a process of its own
    demo_check.py      the checker: ack lists on one side, the store on the other

Everything heavy is imported inside of the functions that need it, so that `esker --help` is quick.
"""
