"""Images: vision towers encode them into features, which language models read in place of placeholders."""
