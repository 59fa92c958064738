"""swe-rl: train software-engineering agents by pure reinforcement learning, with rewards from executed tests."""

__version__ = "0.1.0"
