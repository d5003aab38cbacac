"""The forward pass: attention, and the transformer around it."""
