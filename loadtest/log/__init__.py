"""One long log under lookups by timestamp and under retention: `python -m loadtest.log`.

`broker` starts Korvet, `wire` speaks to it, `fill` writes the log, `lookups` and `retention` measure, `redis_side`
looks at what Redis says of itself, `report` keeps and shows the figures.
"""
