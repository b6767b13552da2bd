"""What mimokit claims to compute in every layout: each with its proof, and what breaks it.

A claim is a row of docs/limits.md. Its run is compared with one process; with its fault planted,
the comparison must fail. `python -m tests.claims` writes the rows.
"""

from tests.claims import models, sizes, training
from tests.claims.claim import Claim

CLAIMS: tuple[Claim, ...] = (*sizes.CLAIMS, *models.CLAIMS, *training.CLAIMS)
