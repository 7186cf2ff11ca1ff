"""`reprise bench sweep`: what each drafting setting brings, by which the defaults were chosen."""
