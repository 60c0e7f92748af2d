"""The files of deploy/ in the hands of the programs that they are for: `make check-deploy`.

Prometheus' own promtool and systemd's systemd-analyze are to be on PATH; a test that misses one fails and says so.
"""
