"""What a run's logs say: how far it came, and how far trainer and sampler were apart."""
