"""A wing: several GPUs of one host."""
