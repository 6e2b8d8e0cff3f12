"""How the next generation of one flow is planned.

Shared by all kinds that start a flow anew or restore its table."""
