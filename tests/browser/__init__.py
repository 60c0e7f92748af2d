"""The console in a real browser: what a person sees and does, and what hostile records cannot do."""
