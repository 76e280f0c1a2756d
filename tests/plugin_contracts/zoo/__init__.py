"""Deliberately wrong plugins, one mistake each, as authors really make them. Imported as `zoo`: see `pythonpath` in pyproject.toml."""
