"""Campaigns that show how far `attnbench ab` can be trusted: recorded rounds, and what the rules make of them."""
