"""Esker in Spark, with a real Spark.

All tests of this directory share one session (the fixture `spark`), and tests/conftest.py sends
them all to one worker of pytest: a second JVM would cost more time than it could save.
"""
