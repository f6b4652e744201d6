"""One file a resource: from a request to a call of the engine, and back."""
