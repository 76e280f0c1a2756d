"""Supervised fine-tuning rollouts for vime."""
