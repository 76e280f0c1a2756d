"""Rewards for mathematical answers, for vime."""
