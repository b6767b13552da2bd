"""Proves a plan without running it: each sample and each parameter is treated exactly once."""

from mimokit.planning.proof.prove import prove, prove_layout
from mimokit.planning.proof.report import Claim, PlanProof

__all__ = ["Claim", "PlanProof", "prove", "prove_layout"]
