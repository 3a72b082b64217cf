"""The draft that came before."""
