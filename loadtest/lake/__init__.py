"""Load tests of the lake."""
