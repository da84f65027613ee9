"""Where the roles run: in turn in one process, or one of each in many ranks."""
