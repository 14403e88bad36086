"""What the jobs return. Field names are the JSON keys; numbers are in base units and named for them.

Keys are only ever added. `coldctl.report` turns these into text or JSON and decides nothing.
"""
