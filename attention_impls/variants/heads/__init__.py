"""Head layout, sharing and mixing of heads."""
