"""Consumer groups: who their members are, and how far they have come."""
