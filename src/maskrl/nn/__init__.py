"""Tensors in, tensors out. Needs torch alone: copy this folder anywhere and it works."""
