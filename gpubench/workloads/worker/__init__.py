"""The child side of networks: chains of stages, their times, and stages on two sides."""
