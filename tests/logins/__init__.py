"""Clients in Go and JavaScript log in: `make test-logins`, which needs Go and Node with npm."""
