"""Load the built-in rules, whose order is that of their importance."""

from rookery.diagnostics import rules_settings  # isort: skip
from rookery.diagnostics import rules_updates  # isort: skip
from rookery.diagnostics import rules_policy  # isort: skip
from rookery.diagnostics.rules import RUN_RULES

__all__ = ["RUN_RULES", "rules_policy", "rules_settings", "rules_updates"]
