"""The results folder of a run: made before the engines work, written while they do."""
