"""The files of deploy/ in the hands of the programs that they are for.

Prometheus' own promtool and systemd's systemd-analyze must be on PATH; a test without its tool fails and says so.
"""
