"""Whole runs of the load tests, which pass or say what is wrong."""
