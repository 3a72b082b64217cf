"""One classifier, trained: loop, checkpoint, treatments, times."""
