"""A few pairs of large, sparse or implicit matrices, and their exact adjoint.

- `maps`: what is decomposed, and how it multiplies
- `lanczos`: the iteration
- `adjoint`: the derivative towards what was not found, by solving
- `eigsh`, `svds`: the public functions
"""
