"""The command line. The only room that talks to a terminal. See docs/cli.md.

    main.py            arguments in, exit code out; failing.py, errors as one line on stderr
    tree.py            every command, and the module that it is in; imports none of them
    place.py           which store: --data, --url, the environment, profiles
    shown.py           how answers are printed; records.py, how records are; progress.py, bars
    look.py            how things stand, in the structs of the HTTP API
    intake.py          stdin and files to batches; files.py, files that are no part of a store

    append.py  read.py  transfer.py (export, import)  sql.py  kin.py (other logs)
    topics.py (ls, info, report, create, alter, rm), topic_options.py, their flags  top.py
    groups.py  queues.py, dead.py  routes.py
    checking.py (verify, repair, du)  doctor.py  copying.py (backup, restore)  bench.py
    retaining.py (retention)  moving.py (tier, archive)
    serve.py  keys.py  config.py  spark.py  showing.py (demo, cheat, completion)

Everything heavy is imported inside of the functions that need it, so that `esker --help` is quick.
"""
