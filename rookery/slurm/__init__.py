"""`rookery slurm`: batch scripts that train on a cluster, and the programs they call."""
