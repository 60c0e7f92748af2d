"""The tiers of the tests: what `make check`, `make test`, `.ci/run`, `make nightly` and `make stress` run."""
