"""Redis, where a fleet has one: it carries wake-ups and keeps nothing."""
