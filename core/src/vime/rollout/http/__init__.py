"""`--serve-engine`: the engine behind an OpenAI-compatible endpoint on this machine, for agents that only speak HTTP."""
