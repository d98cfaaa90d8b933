"""``tokenswift bench``: how fast each method and what else a user would pick continue the same text.

A :mod:`contestant <tokenswift_cli.bench.contestant>` runs one or more methods in a process of its own, so
that peak memory is its own; the :mod:`schedule <tokenswift_cli.bench.schedule>` lets them take turns.
"""
