"""The doors between the engine and the world: protocols, no code."""
