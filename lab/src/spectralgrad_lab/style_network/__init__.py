"""The style-transfer network of PAMI fig. 8: its training, and how its pictures are judged."""
