"""The command line. The only room that talks to a terminal.

    main.py            arguments, exit codes, errors as one line on stderr
    commands.py        what each command does, with the public API
    spark.py           `esker spark`: a command for each job
    demo.py            `esker demo`: the flags of esker.demo, which shows it

Everything heavy is imported inside of the functions that need it, so that `esker --help` is quick.
"""
