"""Columns of a table: cells of text, numbers, dates and categories, and the inputs made of them."""
