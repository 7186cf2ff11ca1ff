"""What servers answer: `reprise bench serve`, `embed` and `images`; and turns of a chat."""
