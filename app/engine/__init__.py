"""The driver: takes the steps that the core decides, for many sessions, safely, at once."""
