"""Pipelines declared in a file: sources, steps in SQL, sinks. Errors name the line.

`places` finds positions in TOML text, `reading` makes a `Declaration` of a file, `views` makes
DataFrames of a declaration, `running` makes streaming queries of those.
"""
