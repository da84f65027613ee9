"""Comparisons of runs: groups of seeds, their curves and scores, as a table, a figure, a page."""
