"""The Ray runtime: trainer ranks and engines as actors, on one machine or many (`--runtime ray`)."""
