"""Faults done to real runs: processes that are killed, disks that fill up, files that are damaged.

``python -m tests.faults`` does them all and prints what came of each as a Markdown table. Nothing here
reaches into the program: runs are started as a user starts them and watched through their events and files.
"""
