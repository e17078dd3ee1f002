"""Real data to publish: each sample behaves as the application that owns such data would."""
