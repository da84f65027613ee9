"""The command line: one short file per subcommand, which parses, calls and prints."""
