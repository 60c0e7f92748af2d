"""Clients in Go and JavaScript log in; needs Go and Node with npm."""
