"""Tests of the scripts under lua/lake."""
