"""`reprise bench economics`: what acceptance drafts need to pay, and what the drafters here reach."""
