"""Ironserve's thinking: pure, typed functions that modules and plugins share. Python 3.9, standard library only."""
