"""Rewards for answers to questions, for vime: the plugins `exact`, `f1`, `choice`, `format` and `random`."""
