"""How a generation begins.

Earlier generations are fenced, the position is read, and the state is copied, rebuilt or left empty.
"""
