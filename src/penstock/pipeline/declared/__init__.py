"""Pipelines declared in a file: sources, steps in SQL, sinks. What is wrong is said with its line.

`places` knows where things stand in TOML, `reading` makes a `Declaration` of a file, `views` makes
DataFrames of a declaration, `running` makes streaming queries of those.
"""
