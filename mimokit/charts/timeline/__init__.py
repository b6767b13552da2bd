"""What one timeline draws, of plans, predictions and traces."""
