"""The one data type every part speaks: windows of `Steps`, time first."""
