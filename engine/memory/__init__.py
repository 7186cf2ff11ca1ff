"""Memory: what sequences ask for, estimates of it as upper bounds, and the budget that decides by them."""
