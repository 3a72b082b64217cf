"""Many trials: one after the other, in worker processes, or on a Ray cluster."""
