"""The edge: speaks HTTP, SSE and foreign protocols."""
