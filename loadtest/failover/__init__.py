"""What a failover of a Redis Cluster costs producers."""
