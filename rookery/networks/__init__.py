"""Networks built from spaces and a config, their parameters views of one flat tensor."""
