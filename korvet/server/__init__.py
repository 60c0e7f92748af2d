"""The processes of one broker.

supervisor/  `korvet serve`: everything before the first fork, then the loop that keeps the children running.
process_pool.py has what a kill -9 of a worker costs, and replaces it
worker       serves clients, through net/
net/         listeners, connections, framing, budgets of memory, dispatch to handlers
keeper/      the upkeep of logs and groups, by the keeper that holds the lease; keeps its broker registered
ops          /healthz, /readyz, /metrics and the console
embedded     the Valkey process of a broker without redis.url, on a locked data.dir
"""
