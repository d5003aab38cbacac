"""tokenpace: pace [s/token] = cost of a pass [s] ÷ tokens kept per pass."""
