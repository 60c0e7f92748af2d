"""Telemetry: what processes count, and the one page that shows it."""
