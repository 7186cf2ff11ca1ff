"""Parts of drafters that copy earlier text: finding it, following it, and learning its changes."""
