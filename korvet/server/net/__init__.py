"""Clients' connections: listeners, sockets, frames, budgets and dispatch."""
