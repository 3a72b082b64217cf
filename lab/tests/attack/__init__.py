"""Campaigns against what comes from outside: records, pickles, pictures, weights, ranks, interrupts. `make attack`."""
