"""Benchmarks: ratios against a bare loop or a peer, measured in turns in one run.

`python -m bench` runs everything, `python -m bench --list` says what there is. No figure here is
a promise about another machine: read the ratios.
"""
