"""Postgres behind the store ports: rows never leave this room."""
