"""Tests of korvet/lake."""
