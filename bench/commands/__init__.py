"""Commands: one file each, holding a click command named COMMAND; `bench.cli` finds them by walking."""
