"""Builds the images of sandboxes/, proves each language by its hello-repository, and keeps what was seen."""
