"""Topics: the registry, their configs, creation, deletion and placement."""
