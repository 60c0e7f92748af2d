"""The processes of one broker; docs/architecture.md says what each is for."""
