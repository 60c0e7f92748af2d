"""Processes of the lake that are killed, and what is left then: `make test-lake`. Most start a Spark of their own."""
