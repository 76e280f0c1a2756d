"""The report of a run: one HTML page that needs nothing else, made of what lies in the run folder."""
