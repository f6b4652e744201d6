"""Tools behind the `Tool` port."""
