"""One file for each table and figure of the papers: what it prints, and what to train or compute for ours."""
