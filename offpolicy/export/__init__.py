"""A trained policy as a file that needs none of this library: ONNX, or a program of torch.export."""
