"""Networks built from spaces and a config; their parameters are views of one flat tensor."""
