"""The cluster: live brokers, leases, settings that clients change, and back-pressure of a store that fills up."""
