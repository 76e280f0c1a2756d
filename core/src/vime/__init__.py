"""vime: RL post-training whose every customisation is a plugin."""
