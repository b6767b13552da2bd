"""Proves a plan without running it: each sample and each parameter is treated exactly once."""

from mimokit.planning.proof.prove import Claim, PlanProof, prove, prove_layout

__all__ = ["Claim", "PlanProof", "prove", "prove_layout"]
