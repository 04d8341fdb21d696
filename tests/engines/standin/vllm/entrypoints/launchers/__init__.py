"""A package of the real engine, here for the modules in it."""
