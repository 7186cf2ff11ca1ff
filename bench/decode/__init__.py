"""`reprise bench decode`: decode chats plainly and with drafts, and compare."""
