"""Principals, authentication, ACLs and quotas."""
