"""The networks of the papers, with the normalisation under test left open."""
