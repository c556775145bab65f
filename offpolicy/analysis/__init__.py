"""Analysis of finished runs: comparison, learning curves, pictures. No torch in here."""
