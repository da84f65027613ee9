"""What is kept of experience, and how batches are drawn from it."""
