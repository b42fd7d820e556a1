"""Measures of an encoder's latents, probes of a run's encoder, and pre-training."""
