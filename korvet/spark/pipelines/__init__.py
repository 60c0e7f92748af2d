"""Pipelines: from topics to tables that analysts use, declared in a file and run by Structured Streaming.

In `spec` is the file and what may be wrong with it, in `decoding` how records become columns, in `targets` where rows
go. `runner` makes a pipeline's queries of these, and runs them until they are stopped.
"""
