"""What is derived of several GPUs from the file of a run."""
