"""Annotated text: what attention patterns are compared with."""
