"""What a person may ask of each recovery.

One module a kind; form, options, parsing and messages come from one declaration."""
