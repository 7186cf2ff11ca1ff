"""Where drafts come from: text that has been seen before, proposed for one forward to check."""
