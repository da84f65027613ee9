"""What a run leaves on disk: its folder, its checkpoints and its reports."""
