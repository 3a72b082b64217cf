"""`spectralgrad bench`: our times and errors beside those of torch and of other packages, with a target for each."""
