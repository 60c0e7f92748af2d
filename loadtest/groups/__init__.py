"""Consumer groups over the wire: `python -m loadtest.groups`.

`cluster` starts two brokers on one Redis, and a third one whose way there is `relay`, `wire` speaks to them, `crowd` is
a group of members, `measure` says how long what takes, `report` keeps and shows the figures.
"""
