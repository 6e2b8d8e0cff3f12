"""Requests of recoveries, a module a kind; :mod:`streamkeeper.recover.requests.form` is the mechanism."""
