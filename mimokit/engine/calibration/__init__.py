"""What a rank measures so that predictions hold for the machine at hand."""

from mimokit.engine.calibration.measure import measure

__all__ = ["measure"]
