"""Processes of the lake that are killed, and what is left then. Most start a Spark of their own."""
