"""Esker in Spark, with a real Spark.

All tests of this directory share one session (the fixture `spark`), and run one after another in
one worker of pytest: a second JVM would take more time to start than it could save.
"""
