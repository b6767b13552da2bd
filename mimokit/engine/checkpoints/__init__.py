"""Saved training state: every rank writes its blocks of whole tensors, any layout reads them."""
