"""Deletion of one wide topic, and how long Redis keeps others waiting meanwhile: `python -m loadtest.deletion`.

`cli` says in which order what is measured, `topic` makes the topic and deletes it, `probe` is the one who waits.
Broker, what Redis says of itself and the table are those of `loadtest.log`.
"""
