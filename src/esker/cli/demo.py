"""`esker demo`: the flags of esker.demo."""

from __future__ import annotations

import argparse


def run(arguments: argparse.Namespace) -> int:
    """Show it. Spark is left out of a fast one."""
    from esker import demo

    return demo.run(
        arguments.dir,
        keep=arguments.keep,
        fast=arguments.fast,
        spark=arguments.spark and not arguments.fast,
        serve=arguments.serve,
        check=arguments.check,
    )
