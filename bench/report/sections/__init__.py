"""Sections of the report: one file each, holding SECTION; `bench.report.build` walks the folder."""
