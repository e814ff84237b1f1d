"""Number formats: attention whose numbers are rounded to few bits on purpose."""
