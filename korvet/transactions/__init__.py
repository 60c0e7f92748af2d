"""Transactions: their coordinator, and its state in Redis."""
