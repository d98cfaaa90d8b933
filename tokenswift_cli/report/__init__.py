"""One page about one or several runs: what they recorded, computed from their files alone.

Reads run directories, which anybody may have made, and writes HTML: whatever comes from a run goes through
:func:`tokenswift_cli.report.markup.escape`. Knows no model, and loads matplotlib only to draw.
"""
