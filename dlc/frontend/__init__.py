"""Model formats in, graphs out."""
