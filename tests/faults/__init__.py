"""Fault tests: traffic, a nemesis that breaks things, a history, and a checker that asks afterwards."""
