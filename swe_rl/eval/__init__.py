"""Measures a policy on tasks that it was never trained on."""
