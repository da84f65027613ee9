"""`rookery slurm`: batch scripts for Slurm clusters, and the programs that they call."""
