"""A fuzz of the linear algebra: hostile matrices by the million, each held to what the documentation promises."""
