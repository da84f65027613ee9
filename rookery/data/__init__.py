"""`Steps`, the data type shared by all components, and trees of arrays."""
