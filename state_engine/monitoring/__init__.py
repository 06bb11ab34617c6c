"""How jobs and roots are, what is wrong with them, and what repairs it."""
