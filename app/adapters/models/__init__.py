"""Language models behind the `ChatModel` port, and wrappers of that port."""
