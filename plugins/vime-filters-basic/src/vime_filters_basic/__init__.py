"""Common group and sample filters for vime."""
