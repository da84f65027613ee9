"""Storage of experience (rollout and replay), and sampling of batches from it."""
