"""A run on a Ray cluster: roles in processes anywhere, and the driver that looks after them."""
