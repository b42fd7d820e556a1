"""Who acts and learns."""
