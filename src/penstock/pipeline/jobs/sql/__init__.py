"""The job `sql`: a pipeline declared in a file."""
