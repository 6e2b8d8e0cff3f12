"""What a person may ask of each recovery. A module a kind, named as its DAG;
:mod:`streamkeeper.recover.requests.form` is the mechanism.
"""
