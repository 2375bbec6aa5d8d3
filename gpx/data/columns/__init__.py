"""Columns of a table (numbers, categories and dates), and the inputs computed from them."""
