"""What can be measured: attention mechanisms, their implementations, transforms and layers."""
