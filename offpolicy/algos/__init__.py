"""The algorithms: tensors and configuration in, updated networks out. The loop times and logs them."""
