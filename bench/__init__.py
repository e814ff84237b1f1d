"""How attention is measured, kept, compared and shown."""
