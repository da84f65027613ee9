"""Pictures and pages drawn from the files of runs, scaling studies and sweeps."""
