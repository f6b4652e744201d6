"""Bearings: agents that keep their bearings, served over HTTP from Postgres alone."""
