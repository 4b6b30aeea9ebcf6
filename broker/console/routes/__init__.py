"""What can be asked and ordered, a module for each page."""
