"""From stored runs to one self-contained page, pictures and tables."""
