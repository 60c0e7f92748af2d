"""Load by real Kafka clients, driven by locust: `make loadtest` and `make soak`.

What locust loads: `locustfile` has the `users` and the shape of the load (`shapes`), adds the flags of `arguments`,
makes the `topics`, judges the statistics by `thresholds`.

What runs beside it, as `python -m loadtest.locust`: `__main__` starts a broker and locust, `watch` takes the broker's
memory and CPU meanwhile and judges them, and `readback` reads everything that was written and holds it against what
producers have put down in their `ledger`. None of these imports locust, which patches the standard library of the
process that does.
"""
