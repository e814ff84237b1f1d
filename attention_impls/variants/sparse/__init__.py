"""Static and content-based sparsity."""
