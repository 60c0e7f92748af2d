"""The rules of a broker: what topics, logs, producers and the cluster are, and what may be done with them.

Knows Kafka's semantics; asks storage for what Redis holds. Wire messages stop above, keys and scripts begin below.
"""
