"""The roles that act, learn and judge."""
