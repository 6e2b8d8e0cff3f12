"""How a generation begins.

Earlier ones are sealed, the position is read, the state is copied, rebuilt or left empty."""
