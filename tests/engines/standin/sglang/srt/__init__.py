"""The package that holds the server arguments in the real engine."""
