"""Other ways to compute softmax attention itself."""
