"""Where records go: JSON lines, TensorBoard, Weights & Biases."""
