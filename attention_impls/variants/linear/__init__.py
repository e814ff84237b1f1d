"""Low-rank forms, kernel feature maps, attention-free mixers."""
