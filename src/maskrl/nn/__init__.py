"""Tensors in, tensors out. Needs torch alone."""
