"""What drafters that copy earlier text have in common: finding it, following it, and learning its changes."""
