"""Recoveries: what a person may ask for, what a plan says, and how it is carried out."""
