"""The agent itself: pure data and pure rules, without any I/O."""
