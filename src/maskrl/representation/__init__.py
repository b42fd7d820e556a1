"""What an encoder has learned: measured on latents, probed in a run, and pre-trained by itself."""
