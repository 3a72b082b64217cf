"""Parts of the site: each is an extension of Sphinx in one file."""
