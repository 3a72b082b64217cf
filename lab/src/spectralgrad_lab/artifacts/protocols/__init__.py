"""What several artifacts share: protocols, methods and grids of trials."""
