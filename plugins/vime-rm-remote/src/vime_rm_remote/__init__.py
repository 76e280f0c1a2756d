"""Rewards from an HTTP service, for vime: the plugin `remote`."""
