"""What `vime doctor` looks at: the machine, what is installed, what a run would find, need and be placed on. Starts nothing."""
