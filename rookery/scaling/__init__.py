"""How speed grows with the number of actors: measured, set beside the ideal, and predicted."""
