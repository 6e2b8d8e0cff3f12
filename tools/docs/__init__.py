"""The documentation: what is made from the code, and the site."""
