"""`vime plugin new`: writes a complete plugin package that passes its checks as it is."""
