"""Native kernels, compiled on first use for the machine at hand; without them everything runs on torch."""
