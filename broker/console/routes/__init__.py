"""Questions and orders, a module for each page."""
