"""The papers' tables and figures, a file each, and how they are run."""
