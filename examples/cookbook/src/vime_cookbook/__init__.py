"""Ten plugins to start from."""
