"""Measurements -> tables, figures and a page to look at."""
