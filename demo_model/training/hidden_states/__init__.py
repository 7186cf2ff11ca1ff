"""What drafts from states of the demo model: the MTP head and the DFlash drafter, and their evaluation."""
