"""What a pass must cost, what it did cost, and on which machine."""
