"""The world: one family a folder, families blind to one another."""
