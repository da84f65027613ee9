"""What is drawn from the files that runs and studies leave."""
